"""Modules whose weights are whole on every tensor rank while the ranks may hold different tokens or heads."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import Partial, Replicate

from megalith.models.norm import LayerNorm, RMSNorm
from megalith.parallel.collectives import TensorGroup
from megalith.parallel.linear import local, stored


class ParallelNorm(nn.Module):
    """A norm on this rank's tokens (or heads, where `sharded` says so whatever the tokens do).

    With sharded activations each rank's weight gradient is a part: it is typed `Partial`, and the sum over tensor ranks
    happens where gradients are reduced.
    """

    def __init__(self, norm: LayerNorm | RMSNorm, group: TensorGroup, sharded: bool) -> None:
        super().__init__()
        self.compute = norm.compute
        self.gradient = Partial() if sharded else Replicate()
        self.weight = stored(norm.weight, group, Replicate())
        self.bias = None if norm.bias is None else stored(norm.bias, group, Replicate())

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else local(self.bias, self.gradient)
        return self.compute(x, local(self.weight, self.gradient), bias)


class ParallelPosition(nn.Module):
    """Learned positions, looked up for this rank's tokens; gradient as in `ParallelNorm`."""

    def __init__(self, embedding: nn.Embedding, group: TensorGroup) -> None:
        super().__init__()
        self.group = group
        self.gradient = Partial() if group.tokens_sharded else Replicate()
        self.weight = stored(embedding.weight, group, Replicate())

    def forward(self, positions_T: Tensor) -> Tensor:
        if self.group.tokens_sharded:
            positions_T = positions_T.chunk(self.group.size)[self.group.rank]
        return F.embedding(positions_T, local(self.weight, self.gradient))
