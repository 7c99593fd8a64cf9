"""The loss on text that is not trained on: mean over tokens, whatever the ranks and their shares of them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from megalith.data.loader import MicroBatch
from megalith.models.decoder import Decoder
from megalith.parallel.mesh import data_parallel_groups


@torch.no_grad()
def validation_loss(
    model: Decoder, micro_batches: Iterable[MicroBatch], mesh: DeviceMesh | None, device: torch.device
) -> tuple[float, int]:
    """Mean loss per scored token over all ranks' `micro_batches`, and the number of those tokens; nan where none are.

    Losses and tokens are summed over the data-parallel ranks and divided once, so that a rank with fewer scored tokens
    weighs less. Without dropout; every rank runs the same number of micro-batches, since FSDP gathers in each.
    """
    was_training = model.training
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    for micro_batch in micro_batches:
        tokens_BS, targets_BS, mask_BS, documents_BS = micro_batch.on(device)
        loss = model(tokens_BS, targets_BS, mask_BS, documents_BS=documents_BS)
        sums += torch.stack([loss.double(), mask_BS.sum().double()])
    for group in data_parallel_groups(mesh):
        dist.all_reduce(sums, group=group)
    model.train(was_training)
    loss_sum, tokens = sums.tolist()
    return (loss_sum / tokens if tokens else float("nan")), int(tokens)
