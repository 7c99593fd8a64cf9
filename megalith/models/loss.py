"""Cross-entropy of next tokens that keeps the logits once, in their own dtype.

# T tokens  V vocabulary (or one rank's slice of it)
The arithmetic is shared with the vocabulary-parallel loss: statistics of the rows first, their combination, then the
gradient of a slice. Rows go through fp32 in chunks, so that no fp32 copy of all logits exists.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

CHUNK_ELEMENTS = 1 << 22
CPU_CHUNK_ELEMENTS = 1 << 20  # a chunk in fp32 stays in the cache from one pass to the next


def row_chunks(logits_TV: Tensor) -> Iterator[slice]:
    """Row ranges of at most CHUNK_ELEMENTS elements (at least one row)."""
    most = CPU_CHUNK_ELEMENTS if logits_TV.device.type == "cpu" else CHUNK_ELEMENTS
    rows = max(1, most // max(1, logits_TV.shape[1]))
    return (slice(start, start + rows) for start in range(0, logits_TV.shape[0], rows))


def row_statistics(logits_TV: Tensor, targets_T: Tensor, offset: int, valid: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row over the first `valid` columns: maximum, sum of exp(logit - maximum), target's logit or 0.

    Columns stand for tokens `offset`, `offset + 1`, ...; a target elsewhere gives 0. Results (T,) in fp32 (fp64 for
    fp64); no valid column gives maximum -inf and sum 0.
    """
    wide = torch.promote_types(logits_TV.dtype, torch.float32)
    maximum = torch.full(targets_T.shape, -torch.inf, dtype=wide, device=logits_TV.device)
    total, target = torch.zeros_like(maximum), torch.zeros_like(maximum)
    if valid == 0:
        return maximum, total, target
    for rows in row_chunks(logits_TV):
        x = logits_TV[rows, :valid].to(wide)
        maximum[rows] = x.amax(-1)
        column = targets_T[rows] - offset
        here = (column >= 0) & (column < valid)
        picked = x.gather(1, column.clamp(0, valid - 1).unsqueeze(1)).squeeze(1)
        target[rows] = torch.where(here, picked, 0)
        total[rows] = (x - maximum[rows].unsqueeze(1)).exp_().sum(-1)
    return maximum, total, target


@torch.library.custom_op("megalith::cross_entropy", mutates_args=())
def cross_entropy(logits_TV: Tensor, targets_T: Tensor) -> tuple[Tensor, Tensor]:
    """forward `log sum exp(logits) - logits[target]`; returns (losses, log-sum-exp); keeps logits and the latter."""
    maximum, total, target = row_statistics(logits_TV, targets_T, 0, logits_TV.shape[1])
    rest = total.log()
    return (maximum - target) + rest, maximum + rest  # large logits cancel before the small sum is added


@cross_entropy.register_fake
def _(logits_TV: Tensor, targets_T: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(logits_TV.dtype, torch.float32)
    return logits_TV.new_empty(targets_T.shape, dtype=wide), logits_TV.new_empty(targets_T.shape, dtype=wide)


@torch.library.custom_op("megalith::logit_gradient", mutates_args=())
def logit_gradient(
    dlosses_T: Tensor, logits_TV: Tensor, targets_T: Tensor, lse_T: Tensor, offset: int, valid: int
) -> Tensor:
    """backward of the loss on columns `offset ..`: `(softmax - onehot) * dloss`, 0 beyond the first `valid` columns."""
    wide = lse_T.dtype
    gradient = torch.empty_like(logits_TV)
    gradient[:, valid:] = 0
    for rows in row_chunks(logits_TV) if valid else ():
        x = torch.sub(logits_TV[rows, :valid], lse_T[rows].unsqueeze(1)).exp_()
        column = targets_T[rows] - offset
        here = ((column >= 0) & (column < valid)).to(wide)
        x.scatter_add_(1, column.clamp(0, valid - 1).unsqueeze(1), -here.unsqueeze(1))
        torch.mul(x, dlosses_T[rows].unsqueeze(1), out=gradient[rows, :valid])
    return gradient


@logit_gradient.register_fake
def _(dlosses_T: Tensor, logits_TV: Tensor, targets_T: Tensor, lse_T: Tensor, offset: int, valid: int) -> Tensor:
    return torch.empty_like(logits_TV)


def _keep(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, dlosses: Tensor, _: Tensor | None):
    logits, targets, lse = ctx.saved_tensors
    return logit_gradient(dlosses, logits, targets, lse, 0, logits.shape[1]), None


cross_entropy.register_autograd(_backward, setup_context=_keep)


class CrossEntropy(nn.Module):
    """Loss of each token against its target."""

    def forward(self, logits_TV: Tensor, targets_T: Tensor) -> Tensor:
        return cross_entropy(logits_TV, targets_T)[0]
