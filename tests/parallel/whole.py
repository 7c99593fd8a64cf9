"""A function of whole tensors around one that runs on parts, so that it can be compared with one process.

Every rank holds the same whole inputs. `enter` hands on what a rank's part needs, `leave` puts the parts of a result
together; both are right in backward, so that the whole is an ordinary function, whose derivative `gradcheck` can test.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, partial: bool) -> Tensor:
        ctx.partial = partial
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy: Tensor):
        dy = dy.clone()
        if ctx.partial:
            dist.all_reduce(dy)
        return dy, None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y: Tensor, dim: int) -> Tensor:
        ctx.dim = dim
        parts = [torch.empty_like(y) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, y.contiguous())
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx, dy: Tensor):
        return dy.chunk(dist.get_world_size(), ctx.dim)[dist.get_rank()], None


def replicated(x: Tensor) -> Tensor:
    """Whole on every rank, and so is its gradient."""
    return _Enter.apply(x, False)  # type: ignore[return-value]


def partly(x: Tensor) -> Tensor:
    """Whole on every rank; each rank's gradient is a part of the sum."""
    return _Enter.apply(x, True)  # type: ignore[return-value]


def part(x: Tensor, dim: int) -> Tensor:
    """This rank's equal part along `dim`."""
    return partly(x).chunk(dist.get_world_size(), dim)[dist.get_rank()]


def together(y: Tensor, dim: int) -> Tensor:
    """All ranks' parts along `dim`."""
    return _Leave.apply(y, dim)  # type: ignore[return-value]
