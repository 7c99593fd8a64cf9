"""Rotary tables against complex numbers and the model card's rule; ALiBi's slopes against the paper's."""

from __future__ import annotations

import math

import pytest
import torch

from megalith.config.model import ModelConfig, Position, RopeScaling
from megalith.models.positions import alibi_slopes, rope_table, rotate

S, N, H = 10, 3, 8


def config(**changes) -> ModelConfig:
    return ModelConfig(1, N * H, N, 11, S, position=Position.ROPE, **changes)


@pytest.mark.parametrize(("theta", "fraction", "rotated"), [(10000.0, 1.0, 8), (500000.0, 0.5, 4), (77.0, 0.8, 6)])
def test_rope_turns_pairs_as_complex_numbers(theta: float, fraction: float, rotated: int) -> None:
    """arXiv:2104.09864, equation 16, for the pairs (i, i + R/2)."""
    x = torch.randn(2 * S, N, H, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = rotate(x, *rope_table(config(rope_theta=theta, rope_fraction=fraction), S, x.device))
    half = rotated // 2
    frequency = theta ** (-2 * torch.arange(half, dtype=torch.float64) / rotated)
    angle = torch.arange(S, dtype=torch.float64).repeat(2)[:, None, None] * frequency
    turned = torch.complex(x[..., :half], x[..., half:rotated]) * torch.polar(torch.ones_like(angle), angle)
    expected = torch.cat((turned.real, turned.imag, x[..., rotated:]), -1)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-5)  # the table is in fp32


def test_scores_depend_on_distance_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, N, H, dtype=torch.float64, generator=generator).expand(S, N, H) for _ in range(2))
    table = rope_table(config(), S, q.device)
    scores = torch.einsum("snh,tnh->nst", rotate(q, *table), rotate(k, *table))
    for distance in range(S):
        same = torch.diagonal(scores, -distance, 1, 2)
        torch.testing.assert_close(same, same[:, :1].expand_as(same), rtol=0, atol=1e-5)
    assert (scores[:, 5, 0] - scores[:, 5, 5]).abs().min() > 1e-2


def test_llama_3_stretches_long_waves_only() -> None:
    """Llama 3.1's model card: waves below 1/4 of 64 positions stay, above 64 are 8 times as long, blended between."""
    plain = rope_table(config(head_dim=64, rope_theta=1000.0), 2, torch.device("cpu"))
    scaling = RopeScaling(8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_seq_len=64)
    scaled = rope_table(config(head_dim=64, rope_theta=1000.0, rope_scaling=scaling), 2, torch.device("cpu"))
    before, after = (torch.atan2(t.sin_SR[1], t.cos_SR[1]).double() for t in (plain, scaled))
    kinds = set()
    for one, other in zip(before.tolist(), after.tolist(), strict=True):
        wave = 2 * math.pi / one
        if wave < 64 / 4:
            kind, expected = "kept", one
        elif wave > 64 / 1:
            kind, expected = "stretched", one / 8
        else:
            smooth = (64 / wave - 1) / (4 - 1)
            kind, expected = "blended", (1 - smooth) * one / 8 + smooth * one
        kinds.add(kind)
        assert other == pytest.approx(expected, rel=1e-5)
    assert kinds == {"kept", "stretched", "blended"}


def test_alibi_slopes_of_the_paper() -> None:
    """arXiv:2108.12409, section 3; for 12 heads those of 8, then every other one of 16."""
    assert alibi_slopes(8) == pytest.approx([1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256])
    assert alibi_slopes(16)[:3] == pytest.approx([2**-0.5, 1 / 2, 2**-1.5])
    assert alibi_slopes(12) == pytest.approx([*alibi_slopes(8), *alibi_slopes(16)[0:8:2]])
    assert alibi_slopes(112) == pytest.approx([*alibi_slopes(64), *alibi_slopes(128)[0:96:2]])
    assert alibi_slopes(1) == pytest.approx([1 / 256])
