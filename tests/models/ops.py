"""Every custom op of `models/` with arguments small enough for numerical derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from megalith.models.core_attention import causal_softmax, sdpa
from megalith.models.dropout import dropout
from megalith.models.loss import cross_entropy
from megalith.models.mlp import swiglu
from megalith.models.norm import rms_norm
from megalith.models.positions import RopeTable, alibi_slopes, rotate


@dataclass(frozen=True, eq=False)
class Op:
    """`run` gives the differentiable output from `inputs()`, those that carry gradients first, and then `rest`."""

    name: str
    op: Any
    shapes: tuple[tuple[int, ...], ...]
    rest: tuple
    output: Callable[[Any], Tensor] = lambda result: result

    def __str__(self) -> str:
        return self.name

    def inputs(self, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(len(self.name))
        made = (scale * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in self.shapes)
        return tuple(x.to(dtype).requires_grad_() for x in made)

    def run(self, *inputs: Tensor) -> Tensor:
        return self.output(self.op(*inputs, *self.rest))


def first(result: tuple[Tensor, ...]) -> Tensor:
    return result[0]


def rope(seq_len: int, half: int) -> RopeTable:
    angle_SR = torch.linspace(0.1, 3, seq_len * half).reshape(seq_len, half)
    return RopeTable(angle_SR.cos(), angle_SR.sin())


B, N, K, S, H = 2, 4, 2, 3, 2
SCORES, QUERY, KEY = (B, K, N // K, S, S), (B, N, S, H), (B, K, S, H)
SLOPES = list(alibi_slopes(N))
BIASES = {"plain": ([], 0), "alibi": (SLOPES, 0), "window": ([], 2), "alibi and window": (SLOPES, 2)}
DOCUMENTS = torch.tensor([[0, 1, 1], [0, 0, 1]])

OPS = (
    Op("dropout", dropout, ((6, 5),), (0.3, torch.tensor(7), torch.tensor(2), 1), first),
    Op("rms_norm", rms_norm, ((6, 5), (5,)), (1e-3,), first),
    Op("rms_norm by head", rms_norm, ((3, 2, 4), (4,)), (1e-3,), first),
    Op("rotate", rotate, ((B * S, N, 4),), tuple(rope(S, 2))),
    Op("rotate half of each head", rotate, ((B * S, N, 4),), tuple(rope(S, 1))),
    Op("swiglu in one block", swiglu, ((3, 12),), (6,)),
    Op("swiglu in blocks", swiglu, ((3, 12),), (2,)),
    Op("cross_entropy", cross_entropy, ((5, 7),), (torch.tensor([0, 6, 3, 3, 1]),), first),
    *(Op(f"causal_softmax, {name}", causal_softmax, (SCORES,), (0.5, *bias)) for name, bias in BIASES.items()),
    Op("causal_softmax, documents", causal_softmax, (SCORES,), (0.5, SLOPES, 2, DOCUMENTS)),
    Op("sdpa, documents", sdpa, (QUERY, KEY, KEY), (0.5, SLOPES, 2, DOCUMENTS), first),
    *(Op(f"sdpa, {name}", sdpa, (QUERY, KEY, KEY), (0.5, *bias), first) for name, bias in BIASES.items()),
    Op("sdpa, heads of their own", sdpa, (QUERY, QUERY, QUERY), (0.5, [], 0), first),
    Op("sdpa, one head for all", sdpa, (QUERY, (B, 1, S, H), (B, 1, S, H)), (0.5, [], 0), first),
)
