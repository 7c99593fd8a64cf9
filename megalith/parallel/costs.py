"""Which collectives each custom op of this folder makes, from its arguments, so that a trace need not make them.

On fake tensors an op runs its fake, which hides its collectives; `tests/tracing/test_collectives.py` holds this table
against the calls that real processes make.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import torch
from torch import Tensor
from torch._ops import OpOverload

from megalith.parallel import collectives, linear, vocab  # noqa: F401  # they define the ops that the table names


class CollectiveKind(StrEnum):
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"


@dataclass(frozen=True)
class Collective:
    """One call by the group named `group`, or by the ranks along a mesh axis of that name.

    `num_bytes`: the whole tensor, that is what a gather gives, a reduce-scatter takes, an all-reduce sums.
    """

    kind: CollectiveKind
    group: str
    num_bytes: int


def _gather(x: Tensor, group: str, size: int) -> Collective:
    return Collective(CollectiveKind.ALL_GATHER, group, x.nbytes * size)


def _reduce(num_bytes: int, group: str, scatter: bool) -> Collective:
    return Collective(CollectiveKind.REDUCE_SCATTER if scatter else CollectiveKind.ALL_REDUCE, group, num_bytes)


def _column(x: Tensor, weights: list[Tensor], biases: list[Tensor], group: str, size: int, tokens_sharded: bool):
    return [_gather(x, group, size)] if tokens_sharded else []


def _column_backward(
    dys: list[Tensor], x: Tensor, weights: list[Tensor], bias: bool, group: str, size: int, tokens_sharded: bool
):
    dx = _reduce(x.nbytes * (size if tokens_sharded else 1), group, tokens_sharded)
    return [_gather(x, group, size), dx] if tokens_sharded else [dx]


def _row(x: Tensor, weight: Tensor, group: str, size: int, tokens_sharded: bool):
    return [_reduce(x.shape[0] * weight.shape[0] * x.element_size(), group, tokens_sharded)]


def _row_backward(dy: Tensor, x: Tensor, weight: Tensor, group: str, size: int, tokens_sharded: bool):
    return [_gather(dy, group, size)] if tokens_sharded else []


def _reduce_tokens(x: Tensor, group: str, size: int, scatter: bool):
    return [_reduce(x.nbytes, group, scatter)]


def _gather_tokens(x: Tensor, group: str, size: int):
    return [_gather(x, group, size)]


def _vocab_cross_entropy(logits: Tensor, targets: Tensor, offset: int, valid: int, group: str):
    row_bytes = targets.numel() * torch.promote_types(logits.dtype, torch.float32).itemsize
    return [Collective(CollectiveKind.ALL_REDUCE, group, n * row_bytes) for n in (1, 2)]


_OPS = torch.ops.megalith
TABLE: MappingProxyType[OpOverload, Callable[..., list[Collective]]] = MappingProxyType(
    {
        _OPS.column_linear.default: _column,
        _OPS.column_linear_backward.default: _column_backward,
        _OPS.row_linear.default: _row,
        _OPS.row_linear_backward.default: _row_backward,
        _OPS.reduce_tokens.default: _reduce_tokens,
        _OPS.gather_tokens.default: _gather_tokens,
        _OPS.vocab_cross_entropy.default: _vocab_cross_entropy,
    }
)


def collectives_of(op: object, arguments: tuple) -> list[Collective]:
    """What one call of `op` sends; nothing for an op that is not in the table."""
    return TABLE[op](*arguments) if op in TABLE else []  # type: ignore[index]
