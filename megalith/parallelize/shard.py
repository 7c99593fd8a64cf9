"""Data parallelism by FSDP2: replicas, sharded optimizer state, or fully sharded weights, by two switches."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from megalith.config.recipe import Precision, Sharding
from megalith.models.decoder import Decoder


def shard_over_data_ranks(model: Decoder, mesh: DeviceMesh, sharding: Sharding, precision: Precision) -> None:
    """Shard each block and the rest over the data axes, in place.

    Gradients are summed, not averaged: the loss is divided once by the global count of scored tokens.
    """
    bf16 = precision is Precision.BF16
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bf16 else MixedPrecisionPolicy()
    axes = mesh["dp_replicate", "dp_shard"] if sharding is Sharding.NONE else mesh["dp_shard"]
    for module in (*model.blocks, model):
        fully_shard(module, mesh=axes, reshard_after_forward=sharding is Sharding.FULL, mp_policy=policy)
    for module in model.modules() if axes.size() > 1 else ():  # alone, a division by one would cost a copy
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
