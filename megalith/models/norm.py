"""LayerNorm and RMSNorm that keep their input and one or two numbers a row.

# T tokens  D normalised elements
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megalith.config.model import ModelConfig, Norm


@torch.library.custom_op("megalith::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """forward `y = x / sqrt(mean(x^2) + eps) * weight`, statistics in fp32; keeps x and 1/rms, not the fp32 copies.

    Torch's own `rms_norm` on a CPU keeps four times the bytes of x (arXiv:1910.07467 for the formula).
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * inverse).to(x.dtype) * weight, inverse


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty((*x.shape[:-1], 1), dtype=torch.promote_types(x.dtype, torch.float32))


@torch.library.custom_op("megalith::rms_norm_backward", mutates_args=())
def rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """backward of `rms_norm`: gradients of x and of weight."""
    normed = x.to(inverse.dtype) * inverse
    scaled = dy.to(inverse.dtype) * weight
    dx = (scaled - normed * (scaled * normed).mean(-1, keepdim=True)) * inverse
    dw = (dy.to(inverse.dtype) * normed).flatten(0, -2).sum(0)
    return dx.to(x.dtype), dw.to(weight.dtype)


@rms_norm_backward.register_fake
def _(dy: Tensor, x: Tensor, weight: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


def _keep(ctx, inputs, output) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, dy: Tensor, _: Tensor | None):
    dx, dw = rms_norm_backward(dy, *ctx.saved_tensors)
    return dx, dw, None


rms_norm.register_autograd(_backward, setup_context=_keep)


class LayerNorm(nn.Module):
    """Mean and variance over the last dimension, with weight and bias."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))

    def compute(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The norm with weights from elsewhere."""
        return F.layer_norm(x, weight.shape, weight, bias, self.eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x, self.weight, self.bias)


class RMSNorm(nn.Module):
    """Root mean square over the last dimension, with weight."""

    bias = None

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def compute(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The norm with weights from elsewhere; it has no bias."""
        return rms_norm(x, weight, self.eps)[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x, self.weight, None)


def make_norm(config: ModelConfig, width: int | None = None) -> LayerNorm | RMSNorm:
    """The config's norm over `width` elements (the hidden size where not given)."""
    kind = LayerNorm if config.norm is Norm.LAYERNORM else RMSNorm
    return kind(config.hidden_size if width is None else width, config.norm_eps)
