"""Weights, gradients and optimizer state on a rank, counted on the sharded model that would train, without values."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import nn

from megalith.config.recipe import Optimizer, OptimizerName, Precision, Recipe
from megalith.parallel.mesh import make_mesh
from megalith.parallelize.apply import assemble
from megalith.parallelize.shard import shard_over_data_ranks
from megalith.parallelize.share import share
from megalith.tracing.fake import fake_world

MAIN_BYTES = 4  # main weights, reduced gradients and each moment are fp32


@dataclass(frozen=True)
class Group:
    """Parameters gathered and reduced together: elements, tensors, and rank 0's elements in its shard and gathered."""

    num_parameters: int
    tensors: int
    shard: int
    gathered: int

    def __add__(self, other: Group) -> Group:
        return Group(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, times: int) -> Group:
        return Group(*(getattr(self, f.name) * times for f in fields(self)))


def has_mesh(recipe: Recipe, world_size: int) -> bool:
    """Whether weights are gathered for compute; one process in fp32 trains on plain tensors (`training.build`)."""
    return world_size > 1 or recipe.precision is not Precision.FP32


def layer_and_root(recipe: Recipe, world_size: int) -> tuple[Group, Group]:
    """One layer, and embedding, final norm and head."""
    one = replace(recipe, model=replace(recipe.model, num_layers=1))
    with fake_world(world_size):
        mesh = make_mesh(recipe.layout, world_size) if has_mesh(recipe, world_size) else None
        model = assemble(one, mesh, torch.float32)
        if mesh is not None:
            shard_over_data_ranks(model, mesh, recipe.layout.sharding, recipe.precision)
        ranks = mesh["dp_shard"].size() if mesh is not None else 1
        block = list(model.blocks.parameters())
        rest = [parameter for name, parameter in model.named_parameters() if not name.startswith("blocks.")]
        return _group(block, ranks), _group(rest, ranks)


def _group(parameters: list[nn.Parameter], ranks: int) -> Group:
    """Each tensor is padded to as many rows on every rank as rank 0 has."""
    shard = sum(share(parameter)[0].numel() for parameter in parameters)
    return Group(sum(parameter.numel() for parameter in parameters), len(parameters), shard, shard * ranks)


def optimizer_bytes(whole: Group, optimizer: Optimizer) -> int:
    """AdamW: two moments, and a step count for each tensor. SGD: the momentum, if there is one."""
    if optimizer.name is OptimizerName.ADAMW:
        return 2 * whole.shard * MAIN_BYTES + whole.tensors * torch.float32.itemsize
    return whole.shard * MAIN_BYTES if optimizer.momentum else 0
