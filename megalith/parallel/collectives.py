"""Collectives on rows (dim 0), each returning its result, with autograd where the model needs it.

# T tokens  t ranks of the group
A group is named by its `group_name`, a string that custom ops can carry; it comes from the mesh by the door.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh

# torch 2.13 renames the *_tensor collectives; 2.11 has only the old names.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


@dataclass(frozen=True)
class TensorGroup:
    """The tensor ranks around this process; `tokens_sharded`: the residual stream holds T/t rows (SP)."""

    name: str
    size: int
    rank: int
    tokens_sharded: bool
    mesh: DeviceMesh

    @classmethod
    def of(cls, mesh: DeviceMesh, tokens_sharded: bool) -> TensorGroup:
        """The tensor group of a mesh with an axis "tp"."""
        tp = mesh["tp"]
        return cls(tp.get_group().group_name, tp.size(), tp.get_local_rank(), tokens_sharded, tp)


def _resolve(group: str) -> dist.ProcessGroup:
    return distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type]


class Pending:
    """A collective on its way; `wait()` gives its result."""

    def __init__(self, result: Tensor, work: dist.Work | None) -> None:
        self.result, self.work = result, work

    def wait(self) -> Tensor:
        if self.work is not None:
            self.work.wait()
        return self.result


def start_gather(x: Tensor, group: str, size: int) -> Pending:
    """(t * rows, ...) of all ranks' x, in rank order."""
    out = x.new_empty((x.shape[0] * size, *x.shape[1:]))
    return Pending(out, _all_gather(out, x.contiguous(), group=_resolve(group), async_op=True))


def start_reduce_scatter(x: Tensor, group: str, size: int) -> Pending:
    """This rank's (rows / t, ...) of the sum over ranks."""
    if x.shape[0] % size:
        raise ValueError(f"{x.shape[0]} rows cannot be scattered over {size} ranks; choose a multiple of {size}")
    out = x.new_empty((x.shape[0] // size, *x.shape[1:]))
    return Pending(out, _reduce_scatter(out, x.contiguous(), group=_resolve(group), async_op=True))


def start_all_reduce(x: Tensor, group: str, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Pending:
    """The sum (or other op) over ranks. x is given away: where it is contiguous the result takes its place."""
    out = x.contiguous()
    return Pending(out, dist.all_reduce(out, op=op, group=_resolve(group), async_op=True))


@torch.library.custom_op("megalith::reduce_tokens", mutates_args=())
def reduce_tokens(x_TD: Tensor, group: str, size: int, scatter: bool) -> Tensor:
    """forward `y = reduce_scatter(x)` by tokens, or `all_reduce(x)` where not `scatter`; keeps nothing.

    backward `dx = gather(dy)`, or dy as it is.
    """
    return (start_reduce_scatter(x_TD, group, size) if scatter else start_all_reduce(x_TD.clone(), group)).wait()


@reduce_tokens.register_fake
def _(x_TD: Tensor, group: str, size: int, scatter: bool) -> Tensor:
    return x_TD.new_empty((x_TD.shape[0] // size if scatter else x_TD.shape[0], *x_TD.shape[1:]))


@torch.library.custom_op("megalith::gather_tokens", mutates_args=())
def gather_tokens(x_TD: Tensor, group: str, size: int) -> Tensor:
    """forward `y = gather(x)` by tokens; the backward half of `reduce_tokens`, without one of its own."""
    return start_gather(x_TD, group, size).wait()


@gather_tokens.register_fake
def _(x_TD: Tensor, group: str, size: int) -> Tensor:
    return x_TD.new_empty((x_TD.shape[0] * size, *x_TD.shape[1:]))


def _keep(ctx, inputs, output) -> None:
    _, ctx.group, ctx.size, ctx.scatter = inputs


def _backward(ctx, dy: Tensor):
    return (gather_tokens(dy, ctx.group, ctx.size) if ctx.scatter else dy), None, None, None


reduce_tokens.register_autograd(_backward, setup_context=_keep)
