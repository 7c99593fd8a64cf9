"""Bytes kept per layer at the published sizes equal the closed forms of arXiv:2205.05198; the formulas live here alone.

s sequence, b micro-batch, h hidden, a heads, t tensor ranks; 16-bit activations, one byte a dropout mask element.
"""

from __future__ import annotations

from functools import cache

import pytest

from megalith.config.model import Attention
from megalith.config.presets import PRESETS
from megalith.config.recipe import Recompute
from megalith.parallel import linear
from megalith.parallel.collectives import start_gather
from megalith.tracing.trace import Part, trace
from tests.tracing.cases import CORE_ATTN, FULL, MLP_ACT, NONE, NORM, recipe

S, T = 2048, 8
MICRO_BATCH = {"gpt3-22b": 4, "gpt3-175b": 1, "mt-nlg-530b": 1, "gpt-1t": 1}  # Table 3
PERCENT_OF_TENSOR = {  # Figure 7, evaluated: sequence parallel, that with selective core attention, full recomputation
    "gpt3-22b": (66.77, 16.14, 7.59),
    "gpt3-175b": (61.96, 18.48, 8.70),
    "mt-nlg-530b": (58.33, 20.24, 9.52),
}


@cache
def kept(model: str, sequence_parallel: bool, choice: Recompute, attention: Attention = Attention.UNFUSED) -> int:
    return trace(recipe(model, MICRO_BATCH[model], S, T, sequence_parallel, choice, attention), Part.LAYER).kept_bytes


def sbh_and_as_h(model: str) -> tuple[float, float]:
    h, a = PRESETS[model].hidden_size, PRESETS[model].num_attention_heads
    return S * MICRO_BATCH[model] * h, a * S / h


@pytest.mark.parametrize("model", MICRO_BATCH)
def test_tensor_parallel_equation_2(model: str) -> None:
    sbh, as_h = sbh_and_as_h(model)
    assert kept(model, False, NONE) == pytest.approx(sbh * (10 + 24 / T + 5 * as_h / T), rel=0.01)


@pytest.mark.parametrize("model", MICRO_BATCH)
def test_sequence_parallel_equation_4(model: str) -> None:
    sbh, as_h = sbh_and_as_h(model)
    assert kept(model, True, NONE) == pytest.approx(sbh / T * (34 + 5 * as_h), rel=0.01)


@pytest.mark.parametrize("model", MICRO_BATCH)
def test_selective_recomputation_equation_6(model: str) -> None:
    sbh, _ = sbh_and_as_h(model)
    assert kept(model, True, CORE_ATTN) == pytest.approx(34 * sbh / T, rel=0.01)
    assert kept(model, False, CORE_ATTN) == pytest.approx(sbh * (10 + 24 / T), rel=0.01)


@pytest.mark.parametrize("model", MICRO_BATCH)
def test_full_recomputation_keeps_the_sharded_input(model: str) -> None:
    sbh, _ = sbh_and_as_h(model)
    assert kept(model, True, FULL) == 2 * sbh / T
    assert kept(model, False, FULL) == 2 * sbh


@pytest.mark.parametrize("model", MICRO_BATCH)
def test_fused_attention_keeps_what_selective_recomputation_keeps(model: str) -> None:
    sbh, _ = sbh_and_as_h(model)
    assert kept(model, True, NONE, Attention.SDPA) == pytest.approx(34 * sbh / T, rel=0.01)


@pytest.mark.parametrize("model", MICRO_BATCH)
def test_norm_and_activation_recomputation_save_their_outputs(model: str) -> None:
    """2 sbh of each norm's output, 8 sbh of the activation's, all split over tensor ranks."""
    sbh, _ = sbh_and_as_h(model)
    everything = kept(model, True, NONE)
    assert everything - kept(model, True, NORM) == 2 * 2 * sbh / T
    assert everything - kept(model, True, MLP_ACT) == 8 * sbh / T


@pytest.mark.parametrize("model", PERCENT_OF_TENSOR)
def test_figure_7(model: str) -> None:
    tensor = kept(model, False, NONE)
    measured = (kept(model, True, NONE), kept(model, True, CORE_ATTN), kept(model, False, FULL))
    assert [100 * part / tensor for part in measured] == pytest.approx(PERCENT_OF_TENSOR[model], abs=0.15)


def test_a_layer_that_keeps_its_gathered_input_is_found() -> None:
    """Mutation: the column-parallel layer saves gather(x), as compiled code would without the opaque op."""

    def keep_gathered(ctx, inputs, output) -> None:
        linear._keep_column(ctx, inputs, output)
        x, _, _, group, size, _ = inputs
        ctx.gathered = start_gather(x, group, size).result

    kept.cache_clear()
    linear.column_linear.register_autograd(linear._column_backward, setup_context=keep_gathered)
    try:
        sbh, _ = sbh_and_as_h("gpt3-175b")
        with pytest.raises(AssertionError):
            test_selective_recomputation_equation_6("gpt3-175b")
        assert kept("gpt3-175b", True, CORE_ATTN) == pytest.approx(34 * sbh / T + 2 * 2 * sbh, rel=0.01)
    finally:
        kept.cache_clear()
        linear.column_linear.register_autograd(linear._column_backward, setup_context=linear._keep_column)
    test_selective_recomputation_equation_6("gpt3-175b")


def test_rope_tables_are_shared_by_all_layers() -> None:
    """A Llama layer keeps no table: twice the positions in half the sequences costs the same."""
    long = trace(recipe("llama-3.1-8b", 1, 4096, T, True, CORE_ATTN, dropout=0.0), Part.LAYER).kept_bytes
    short = trace(recipe("llama-3.1-8b", 2, 2048, T, True, CORE_ATTN, dropout=0.0), Part.LAYER).kept_bytes
    assert long == short


def test_llama_layer_by_hand() -> None:
    """A token's elements: inputs and outputs of two norms; query, key, value, output; gate, up, their product."""
    config = PRESETS["llama-3.1-8b"]
    h, f, kv = config.hidden_size, config.ffn_width, config.kv_heads * config.head_width
    elements = 4 * h + (2 * h + 2 * kv) + 3 * f
    case = recipe("llama-3.1-8b", 1, 4096, T, True, attention=Attention.SDPA, dropout=0.0)
    assert trace(case, Part.LAYER).kept_bytes == pytest.approx(4096 / T * elements * 2, rel=0.01)


def test_ends_of_the_model() -> None:
    """Section 4.3: a mask in the embedding, inputs of final norm and head, logits (theirs in fp32, ours in bf16)."""
    sbh, _ = sbh_and_as_h("gpt3-22b")
    case = recipe("gpt3-22b", MICRO_BATCH["gpt3-22b"], S, T, True)
    logits = S * MICRO_BATCH["gpt3-22b"] * PRESETS["gpt3-22b"].vocab_size
    assert trace(case, Part.HEAD).kept_bytes == pytest.approx((4 * sbh + 2 * logits) / T, rel=0.01)
    lookup = S * MICRO_BATCH["gpt3-22b"] * (8 + 8 + 1)  # tokens, positions, and which tokens another rank has
    assert trace(case, Part.EMBEDDING).kept_bytes == pytest.approx(sbh / T + lookup, rel=0.01)
