"""Linear layers split over tensor ranks, as opaque ops: compiled code keeps what eager code keeps.

# T tokens  D hidden  E output features  t tensor ranks  /t split over them
Column parallel: each rank holds rows of W, so E/t outputs. Row parallel: each holds columns, and their partial results
are summed. With sequence parallelism x and y of the pair hold T/t rows (g and g-bar of arXiv:2205.05198, section 4.2).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import Partial, Placement, Replicate, Shard, distribute_tensor
from torch.utils.flop_counter import register_flop_formula

from megalith.parallel.collectives import TensorGroup, start_all_reduce, start_gather, start_reduce_scatter


@torch.library.custom_op("megalith::column_linear", mutates_args=())
def column_linear(
    x_TD: Tensor, weights: list[Tensor], biases: list[Tensor], group: str, size: int, tokens_sharded: bool
) -> list[Tensor]:
    """forward `y_i = gather(x) @ w_i.T + b_i` for each weight, from one gather; keeps x, not gather(x).

    backward `dx = reduce_scatter(sum_i dy_i @ w_i)`, `dw_i = dy_i.T @ gather(x)`. Where tokens are not sharded the
    gather is nothing and the reduce-scatter an all-reduce. `biases` is empty or one for each weight.
    """
    x = start_gather(x_TD, group, size).wait() if tokens_sharded else x_TD
    return [F.linear(x, w, biases[i] if biases else None) for i, w in enumerate(weights)]


@column_linear.register_fake
def _(x_TD, weights, biases, group, size, tokens_sharded):
    rows = x_TD.shape[0] * (size if tokens_sharded else 1)
    return [x_TD.new_empty((rows, w.shape[0])) for w in weights]


@torch.library.custom_op("megalith::column_linear_backward", mutates_args=())
def column_linear_backward(
    dys: list[Tensor], x_TD: Tensor, weights: list[Tensor], bias: bool, group: str, size: int, tokens_sharded: bool
) -> list[Tensor]:
    """[dx, *dw, *db]; the gather of x runs beside the GEMMs of dx, the reduction of dx beside those of dw."""
    gathering = start_gather(x_TD, group, size) if tokens_sharded else None
    dx = dys[0] @ weights[0]
    for dy, w in zip(dys[1:], weights[1:], strict=True):
        dx.addmm_(dy, w)
    reducing = start_reduce_scatter(dx, group, size) if tokens_sharded else start_all_reduce(dx, group)
    x = gathering.wait() if gathering else x_TD
    dws = [dy.T @ x for dy in dys]
    dbs = [dy.sum(0) for dy in dys] if bias else []
    return [reducing.wait(), *dws, *dbs]


@column_linear_backward.register_fake
def _(dys, x_TD, weights, bias, group, size, tokens_sharded):
    dbs = [w.new_empty(w.shape[0]) for w in weights] if bias else []
    return [*(y.new_empty(y.shape) for y in (x_TD, *weights)), *dbs]


def _keep_column(ctx, inputs, output) -> None:
    x, weights, biases, *ctx.where = inputs
    ctx.num_biases = len(biases)
    ctx.save_for_backward(x, *weights)


def _column_backward(ctx, dys: list[Tensor]):
    x, *weights = ctx.saved_tensors
    dx, *rest = column_linear_backward(dys, x, weights, ctx.num_biases > 0, *ctx.where)
    return dx, rest[: len(weights)], rest[len(weights) :], None, None, None


column_linear.register_autograd(_column_backward, setup_context=_keep_column)


@torch.library.custom_op("megalith::row_linear", mutates_args=())
def row_linear(x_TE: Tensor, weight: Tensor, group: str, size: int, tokens_sharded: bool) -> Tensor:
    """forward `y = reduce_scatter(x @ w.T)`, an all-reduce where tokens are not sharded; keeps x.

    backward `dx = gather(dy) @ w`, `dw = gather(dy).T @ x`.
    """
    y = F.linear(x_TE, weight)
    return (start_reduce_scatter(y, group, size) if tokens_sharded else start_all_reduce(y, group)).wait()


@row_linear.register_fake
def _(x_TE, weight, group, size, tokens_sharded):
    return x_TE.new_empty((x_TE.shape[0] // (size if tokens_sharded else 1), weight.shape[0]))


@torch.library.custom_op("megalith::row_linear_backward", mutates_args=())
def row_linear_backward(
    dy_TD: Tensor, x_TE: Tensor, weight: Tensor, group: str, size: int, tokens_sharded: bool
) -> tuple[Tensor, Tensor]:
    """(dx, dw) of `row_linear`, from one gather of dy."""
    dy = start_gather(dy_TD, group, size).wait() if tokens_sharded else dy_TD
    return dy @ weight, dy.T @ x_TE


@row_linear_backward.register_fake
def _(dy_TD, x_TE, weight, group, size, tokens_sharded):
    return x_TE.new_empty(x_TE.shape), weight.new_empty(weight.shape)


def _keep_row(ctx, inputs, output) -> None:
    x, weight, *ctx.where = inputs
    ctx.save_for_backward(x, weight)


def _row_backward(ctx, dy: Tensor):
    return *row_linear_backward(dy, *ctx.saved_tensors, *ctx.where), None, None, None


row_linear.register_autograd(_row_backward, setup_context=_keep_row)


@register_flop_formula(torch.ops.megalith.column_linear)
def _(x_shape, weight_shapes, *args, out_shape, **kwargs) -> int:
    return sum(2 * out[0] * w[0] * w[1] for out, w in zip(out_shape, weight_shapes, strict=True))


@register_flop_formula(torch.ops.megalith.column_linear_backward)
def _(dy_shapes, x_shape, weight_shapes, *args, out_shape=None, **kwargs) -> int:
    return sum(4 * dy[0] * w[0] * w[1] for dy, w in zip(dy_shapes, weight_shapes, strict=True))


@register_flop_formula(torch.ops.megalith.row_linear)
def _(x_shape, weight_shape, *args, out_shape=None, **kwargs) -> int:
    return 2 * x_shape[0] * weight_shape[0] * weight_shape[1]


@register_flop_formula(torch.ops.megalith.row_linear_backward)
def _(dy_shape, x_shape, weight_shape, *args, out_shape=None, **kwargs) -> int:
    return 4 * x_shape[0] * weight_shape[0] * weight_shape[1]


def stored(parameter: Tensor, group: TensorGroup, placement: Placement) -> nn.Parameter:
    """A parameter held as a DTensor on the tensor axis; computed on through `local`."""
    return nn.Parameter(distribute_tensor(parameter.detach(), group.mesh, [placement]))


def local(parameter: nn.Parameter, gradient: Placement) -> Tensor:
    """This rank's part as a plain tensor; `gradient` says what the gradient that comes back is on the tensor axis."""
    return parameter.to_local(grad_placements=[gradient])  # type: ignore[attr-defined]


class _Split(nn.Module):
    """A linear layer's weight and bias under their old names, placed on the tensor axis."""

    def __init__(self, linear: nn.Linear, group: TensorGroup, weight: Placement, bias: Placement) -> None:
        super().__init__()
        self.group = group
        self.weight = stored(linear.weight, group, weight)
        self.bias = None if linear.bias is None else stored(linear.bias, group, bias)


class ColumnParallelLinear(_Split):
    """`y_T(E/t) = gather(x) @ w.T + b`; see `column_linear`."""

    def __init__(self, linear: nn.Linear, group: TensorGroup) -> None:
        super().__init__(linear, group, Shard(0), Shard(0))

    def forward(self, x_TD: Tensor) -> Tensor:
        biases = [] if self.bias is None else [local(self.bias, Shard(0))]
        group = self.group
        weights = [local(self.weight, Shard(0))]
        return column_linear(x_TD, weights, biases, group.name, group.size, group.tokens_sharded)[0]


class RowParallelLinear(_Split):
    """`y_TD = reduce(x @ w.T) + b`; see `row_linear`. The bias is added once, after the sum."""

    def __init__(self, linear: nn.Linear, group: TensorGroup) -> None:
        super().__init__(linear, group, Shard(1), Replicate())

    def forward(self, x_TE: Tensor) -> Tensor:
        group = self.group
        y_TD = row_linear(x_TE, local(self.weight, Shard(1)), group.name, group.size, group.tokens_sharded)
        if self.bias is None:
            return y_TD
        return y_TD + local(self.bias, Partial() if group.tokens_sharded else Replicate())
