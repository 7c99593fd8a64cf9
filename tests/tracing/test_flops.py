"""FLOPs counted on traced layers equal the papers' equations; the equations live here alone.

B batch, L layers, s sequence, h hidden, V vocabulary. 2205.05198 and 2104.04473 are numbers on arXiv.
"""

from __future__ import annotations

from functools import cache

import pytest

from megalith.config.model import Attention
from megalith.config.presets import PRESETS
from megalith.config.recipe import Recompute
from megalith.tracing.trace import Part, Trace, trace
from tests.tracing.cases import CORE_ATTN, FULL, NONE, recipe

S = 2048
MODELS = ("gpt3-22b", "gpt3-175b", "mt-nlg-530b", "gpt-1t")


@cache
def head_of(model: str, tensor_parallel_size: int) -> Trace:
    case = recipe(model, 1, S, tensor_parallel_size, tensor_parallel_size > 1)
    assert trace(case, Part.EMBEDDING).model_flops == 0
    return trace(case, Part.HEAD)


@cache
def counted(model: str, choice: Recompute, tensor_parallel_size: int, attention: Attention = Attention.UNFUSED):
    """(model FLOPs, hardware FLOPs) of one sequence on all tensor ranks."""
    layer = trace(recipe(model, 1, S, tensor_parallel_size, tensor_parallel_size > 1, choice, attention), Part.LAYER)
    head = head_of(model, tensor_parallel_size)
    layers = PRESETS[model].num_layers
    return tuple(
        tensor_parallel_size * (layers * getattr(layer, kind) + getattr(head, kind))
        for kind in ("model_flops", "hardware_flops")
    )


def sizes(model: str) -> tuple[float, float, float]:
    """72 L s h^2, s / h, V / (h L)."""
    config = PRESETS[model]
    h, layers = config.hidden_size, config.num_layers
    return 72 * layers * S * h**2, S / h, config.vocab_size / (h * layers)


@pytest.mark.parametrize("tensor_parallel_size", [1, 8])
@pytest.mark.parametrize("model", MODELS)
def test_model_flops_2205_05198_equation_7(model: str, tensor_parallel_size: int) -> None:
    scale, s_h, v_hl = sizes(model)
    expected = scale * (1 + s_h / 6 + v_hl / 12)
    assert counted(model, NONE, tensor_parallel_size) == pytest.approx((expected, expected), rel=0.001)


@pytest.mark.parametrize("tensor_parallel_size", [1, 8])
@pytest.mark.parametrize("model", MODELS)
def test_selective_recomputation_stays_below_2205_05198_equation_8(model: str, tensor_parallel_size: int) -> None:
    """Equation 8 allows s/(6h) for running core attention again, which is its forward three times.

    Once is 4 b s^2 h of 72 b s h^2, s/(18h). The layer runs half of it: backward needs no second product with v.
    """
    scale, s_h, v_hl = sizes(model)
    model_flops, hardware_flops = counted(model, CORE_ATTN, tensor_parallel_size)
    assert model_flops == pytest.approx(scale * (1 + s_h / 6 + v_hl / 12), rel=0.001)
    assert hardware_flops == pytest.approx(scale * (1 + s_h / 6 + s_h / 36 + v_hl / 12), rel=0.001)
    assert hardware_flops < scale * (1 + s_h / 3 + v_hl / 12)


@pytest.mark.parametrize("tensor_parallel_size", [1, 8])
@pytest.mark.parametrize("model", MODELS)
def test_full_recomputation_2104_04473_equation_3(model: str, tensor_parallel_size: int) -> None:
    scale, s_h, v_hl = sizes(model)
    _, hardware_flops = counted(model, FULL, tensor_parallel_size)
    assert hardware_flops == pytest.approx(scale * 96 / 72 * (1 + s_h / 6 + v_hl / 16), rel=0.001)


def test_fused_attention_does_the_same_model_flops() -> None:
    """It computes the scores again in backward, which hardware FLOPs count and model FLOPs do not."""
    plain, fused = counted("gpt3-175b", NONE, 8), counted("gpt3-175b", NONE, 8, Attention.SDPA)
    scale, s_h, _ = sizes("gpt3-175b")
    assert fused[0] == plain[0]
    assert fused[1] - plain[1] == pytest.approx(scale * s_h / 36, rel=0.001)


@pytest.mark.parametrize("attention", Attention)
@pytest.mark.parametrize("tensor_parallel_size", [1, 8, 16])
def test_grouped_queries_and_gate_by_hand(tensor_parallel_size: int, attention: Attention) -> None:
    """Llama 3.1 8B: query and output 2 h^2, key and value 2 h (K H), gate, up and down 3 h f, attention 2 s h; x 2 x 3.

    Sixteen ranks have eight key/value heads: each computes one, so that part is done twice.
    """
    config = PRESETS["llama-3.1-8b"]
    h, kv = config.hidden_size, config.kv_heads * config.head_width
    copies = max(1, tensor_parallel_size // config.kv_heads)
    per_token = 2 * h * h + 2 * h * kv * copies + 3 * h * config.ffn_width + 2 * S * h
    case = recipe("llama-3.1-8b", 1, S, tensor_parallel_size, attention=attention)
    assert trace(case, Part.LAYER).model_flops * tensor_parallel_size == 6 * S * per_token
