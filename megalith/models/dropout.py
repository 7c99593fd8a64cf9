"""Dropout whose mask follows from a seed, so that recompute and resume draw it again without any RNG state.

The mask is a function of (seed of the micro-batch, site in the model, rank where activations are sharded) and is kept
for backward as one byte an element, as in arXiv:2205.05198.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

MASK_64 = (1 << 64) - 1


def mix(*parts: int) -> int:
    """Fold integers into one 63-bit seed (splitmix64 steps); order matters, small differences spread over all bits."""
    state = 0
    for part in parts:
        state = (state + part + 0x9E3779B97F4A7C15) & MASK_64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK_64
        state ^= state >> 31
    return state >> 1


@torch.library.custom_op("megalith::dropout", mutates_args=())
def dropout(x: Tensor, probability: float, seed: Tensor, site: Tensor, salt: int) -> tuple[Tensor, Tensor]:
    """forward `y = x * mask / (1 - p)`; keeps the mask (bool, the shape of x), not x.

    `seed` and `site` are 0-d int64 on the CPU: tensors, so that compiled code is not made anew for each step or layer.
    """
    generator = torch.Generator(device=x.device).manual_seed(mix(int(seed.item()), int(site.item()), salt))
    mask = torch.empty(x.shape, dtype=torch.bool, device=x.device).bernoulli_(1 - probability, generator=generator)
    return (x * mask).mul_(1 / (1 - probability)), mask


@dropout.register_fake
def _(x: Tensor, probability: float, seed: Tensor, site: Tensor, salt: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape, dtype=torch.bool)


def _keep(ctx, inputs, output) -> None:
    ctx.scale = 1 / (1 - inputs[1])
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, dy: Tensor, _: Tensor | None):
    (mask,) = ctx.saved_tensors
    return (dy * mask).mul_(ctx.scale), None, None, None, None


dropout.register_autograd(_backward, setup_context=_keep)


class Dropout(nn.Module):
    """Zeroes elements with `probability` while training; `site` numbers the places of one model apart.

    `salt` is 0 where every rank holds the same activations and must draw the same mask; parallelisation sets it where
    ranks hold different parts.
    """

    def __init__(self, probability: float, site: int) -> None:
        super().__init__()
        self.probability, self.site, self.salt = probability, torch.tensor(site, device="cpu"), 0

    def forward(self, x: Tensor, seed: Tensor | None) -> Tensor:
        if not self.training or self.probability == 0 or seed is None:
            return x
        return dropout(x, self.probability, seed, self.site, self.salt)[0]
