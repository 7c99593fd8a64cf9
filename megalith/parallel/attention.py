"""Query, key and value projections split by heads over tensor ranks, for any number of key/value heads.

# T tokens  N query heads  K key/value heads  H head width  t tensor ranks
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from torch import Tensor, nn
from torch.distributed.tensor import Partial, Replicate, Shard

from megalith.config.model import ModelConfig
from megalith.parallel.collectives import TensorGroup
from megalith.parallel.linear import ColumnParallelLinear, column_linear, local, stored


class HasQueryKeyValue(Protocol):
    """What is replaced: two linear layers on one input."""

    query: nn.Linear
    key_value: nn.Linear


def heads_needed(num_heads: int, num_kv_heads: int, size: int, rank: int) -> tuple[list[int], list[int]]:
    """(key/value heads that a rank's query heads use, where in that list each *kept* head is read).

    The second list has one entry for each key/value head that core attention shall see: the heads themselves where
    every one serves equally many of the rank's query heads, else one for each query head.
    """
    per_rank, per_kv = num_heads // size, num_heads // num_kv_heads
    used = [(rank * per_rank + i) // per_kv for i in range(per_rank)]
    heads = sorted(set(used))
    even = len(set(Counter(used).values())) == 1
    return heads, list(range(len(heads))) if even else [heads.index(head) for head in used]


class _Replicated(nn.Module):
    """A linear layer's weight and bias whole on every tensor rank."""

    def __init__(self, linear: nn.Linear, group: TensorGroup) -> None:
        super().__init__()
        self.weight = stored(linear.weight, group, Replicate())
        self.bias = None if linear.bias is None else stored(linear.bias, group, Replicate())


class ParallelQueryKeyValue(nn.Module):
    """Both projections from one gather of x; returns this rank's query heads and the key/value heads that they need.

    Where t divides K, `key_value` is split by heads. Else it is whole on each rank, which computes only the heads it
    needs; its gradient is then a part of the sum over ranks.
    """

    def __init__(self, qkv: HasQueryKeyValue, config: ModelConfig, group: TensorGroup) -> None:
        super().__init__()
        self.group, self.head_rows = group, 2 * config.head_width
        self.split = config.kv_heads % group.size == 0
        self.heads, self.read = heads_needed(config.num_attention_heads, config.kv_heads, group.size, group.rank)
        self.query = ColumnParallelLinear(qkv.query, group)
        self.key_value = (ColumnParallelLinear if self.split else _Replicated)(qkv.key_value, group)

    def forward(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        group, biases = self.group, []
        weights = [local(self.query.weight, Shard(0)), self._needed(self.key_value.weight)]
        if self.query.bias is not None and self.key_value.bias is not None:
            biases = [local(self.query.bias, Shard(0)), self._needed(self.key_value.bias)]
        query, key_value = column_linear(x_TD, weights, biases, group.name, group.size, group.tokens_sharded)
        if not self.split and len(self.read) != len(self.heads):
            key_value = key_value.unflatten(-1, (-1, self.head_rows))[:, self.read].flatten(1)
        return query, key_value

    def _needed(self, parameter: nn.Parameter) -> Tensor:
        if self.split:
            return local(parameter, Shard(0))
        first, last = self.heads[0], self.heads[-1]  # neighbours, so the part is a view and no copy is kept
        return local(parameter, Partial())[first * self.head_rows : (last + 1) * self.head_rows]
