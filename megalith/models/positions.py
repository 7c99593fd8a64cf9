"""How tokens learn their order: rotary tables (RoPE) and linear distance penalties (ALiBi).

# S sequence  H head width  R rotated elements of a head
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.config.model import ModelConfig, RopeScaling


class RopeTable(NamedTuple):
    """Cosine and sine of every (position, frequency), fp32, each (S, R/2)."""

    cos_SR: Tensor
    sin_SR: Tensor


def rope_table(config: ModelConfig, seq_len: int, device: torch.device) -> RopeTable:
    """Angles `position * theta^(-2i/R)` (arXiv:2104.09864), stretched as Llama 3 does where the config says so."""
    exponent = torch.arange(0, config.rotary_dim, 2, dtype=torch.int64, device=device).float() / config.rotary_dim
    frequency = 1.0 / (config.rope_theta**exponent)
    if config.rope_scaling is not None:
        frequency = _stretch(frequency, config.rope_scaling)
    angle_SR = torch.outer(torch.arange(seq_len, device=device, dtype=torch.float32), frequency)
    return RopeTable(angle_SR.cos(), angle_SR.sin())


def _stretch(frequency: Tensor, scaling: RopeScaling) -> Tensor:
    """Divide low frequencies by `factor`, keep high ones, blend in between (Llama 3.1)."""
    turns = scaling.original_max_seq_len * frequency / (2 * math.pi)
    share = ((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0, 1)
    return frequency * (share + (1 - share) / scaling.factor)


def positions_in_documents(documents_BS: Tensor) -> Tensor:
    """Positions that start again at 0 where the number of the document changes along a row, int64 (B, S)."""
    place_S = torch.arange(documents_BS.shape[1], device=documents_BS.device)
    begins_BS = torch.zeros_like(documents_BS, dtype=torch.bool)
    begins_BS[:, 1:] = documents_BS.diff() != 0
    return place_S - torch.where(begins_BS, place_S, 0).cummax(1).values


@torch.library.custom_op("megalith::rotate", mutates_args=())
def rotate(x_TNH: Tensor, cos_SR: Tensor, sin_SR: Tensor, back: bool = False) -> Tensor:
    """forward: turn the pairs (i, i + R/2) of each head's first R elements by the angle of its position.

    Rows are batch first, so token t stands at position t mod S. Computed in fp32, returned in the dtype of x; keeps the
    tables, not x. backward: the same turn `back`; said so and not by -sin, which compiled layers would keep each.
    """
    repeats, half = x_TNH.shape[0] // cos_SR.shape[0], cos_SR.shape[1]
    wide = torch.promote_types(x_TNH.dtype, torch.float32)
    x = x_TNH.unflatten(0, (repeats, -1))
    first, second = x[..., :half].to(wide), x[..., half : 2 * half].to(wide)
    cos, sin = cos_SR.to(wide).unsqueeze(1), sin_SR.to(wide).unsqueeze(1)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    sin = -sin if back else sin
    y[..., :half] = first * cos - second * sin
    y[..., half : 2 * half] = second * cos + first * sin
    y[..., 2 * half :] = x[..., 2 * half :]
    return y.flatten(0, 1)


@rotate.register_fake
def _(x_TNH: Tensor, cos_SR: Tensor, sin_SR: Tensor, back: bool = False) -> Tensor:
    return torch.empty_like(x_TNH, memory_format=torch.contiguous_format)


def _keep(ctx, inputs, output) -> None:
    _, cos, sin, ctx.back = inputs
    ctx.save_for_backward(cos, sin)


def _backward(ctx, dy: Tensor):
    return rotate(dy, *ctx.saved_tensors, not ctx.back), None, None, None


rotate.register_autograd(_backward, setup_context=_keep)


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """Penalty per position of distance for each head (arXiv:2108.12409, section 3).

    A power of two n gives 2^(-8/n), 2^(-16/n), ...; other counts take every other slope of the next power for the rest.
    """
    power = 1 << (num_heads.bit_length() - 1)
    base = 2.0 ** (-8.0 / power)
    slopes = [base**i for i in range(1, power + 1)]
    extra = 2.0 ** (-4.0 / power)
    return tuple(slopes + [extra ** (2 * i + 1) for i in range(num_heads - power)])
