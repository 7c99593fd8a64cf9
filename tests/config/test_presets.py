"""Presets have the published shapes: a closed form for each family, written here, gives the published counts."""

from __future__ import annotations

import pytest

from megalith.config.model import ModelConfig
from megalith.config.presets import PRESETS, model_preset
from megalith.errors import UserError


def gpt_parameters(model: ModelConfig) -> int:
    """arXiv:2104.04473, equation 2, and the final LayerNorm that it leaves out."""
    layers, h, s, v = model.num_layers, model.hidden_size, model.max_seq_len, model.vocab_size
    return 12 * layers * h * h + 13 * layers * h + (v + s) * h + 2 * h


def bloom_parameters(model: ModelConfig) -> int:
    """A GPT without a table of positions, with a LayerNorm after the embedding."""
    layers, h, v = model.num_layers, model.hidden_size, model.vocab_size
    return 12 * layers * h * h + 13 * layers * h + v * h + 4 * h


def llama_parameters(model: ModelConfig) -> int:
    """Query and output, key and value, three projections of the MLP, two norms a layer; embedding, head, final norm."""
    h, f, n, k, v = model.hidden_size, model.ffn_width, model.num_attention_heads, model.kv_heads, model.vocab_size
    layer = 2 * h * h + 2 * h * (h // n) * k + 3 * h * f + 2 * h
    return model.num_layers * layer + 2 * v * h + h


# Llama: Hugging Face model cards' safetensors totals; BLOOM: those of bigscience/bloom-560m and bigscience/bloom.
EXACT = {
    "bloom-560m": (bloom_parameters, 559_214_592),
    "bloom-176b": (bloom_parameters, 176_247_271_424),
    "llama-3.1-8b": (llama_parameters, 8_030_261_248),
    "llama-3.1-70b": (llama_parameters, 70_553_706_496),
    "llama-3.1-405b": (llama_parameters, 405_853_388_800),
}

# Digits as published: 39.1, 174.6, 529.6, 1008.0 billion in arXiv:2104.04473, Table 1; the others by their names in
# arXiv:2205.05198 (22B) and NeMo; each with the unit of its last digit.
ROUNDED = {
    "gpt3-126m": (126e6, 1e6),
    "gpt3-1.3b": (1.3e9, 1e8),
    "gpt3-5b": (5e9, 1e9),
    "gpt3-20b": (20e9, 1e9),
    "gpt3-22b": (22e9, 1e9),
    "gpt3-40b": (39.1e9, 1e8),
    "gpt3-175b": (174.6e9, 1e8),
    "mt-nlg-530b": (529.6e9, 1e8),
    "gpt-1t": (1008.0e9, 1e8),
}


@pytest.mark.parametrize("name", EXACT)
def test_published_count_to_the_parameter(name: str) -> None:
    count, published = EXACT[name]
    assert count(model_preset(name)) == published


@pytest.mark.parametrize("name", ROUNDED)
def test_published_count_to_its_last_digit(name: str) -> None:
    published, unit = ROUNDED[name]
    assert round(gpt_parameters(model_preset(name)) / unit) == round(published / unit)


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "heads"),
    [
        ("gpt3-22b", 48, 6144, 64),
        ("gpt3-175b", 96, 12288, 96),
        ("mt-nlg-530b", 105, 20480, 128),
        ("gpt-1t", 128, 25600, 160),
    ],
)
def test_shapes_of_the_selective_recomputation_paper(name: str, layers: int, hidden: int, heads: int) -> None:
    """arXiv:2205.05198, Table 3: sequences of 2048, vocabulary 51200."""
    model = model_preset(name)
    assert (model.num_layers, model.hidden_size, model.num_attention_heads) == (layers, hidden, heads)
    assert (model.max_seq_len, model.vocab_size, model.ffn_width) == (2048, 51200, 4 * hidden)


def test_every_preset_is_counted_or_small() -> None:
    small = {"gpt-demo", "gpt-tiny", "bloom-tiny", "llama-tiny"}
    assert set(PRESETS) == small | set(EXACT) | set(ROUNDED)
    assert 2e6 < gpt_parameters(model_preset("gpt-demo")) < 6e6


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"preset gpt3-126mm does not exist; choose gpt3-126m"):
        model_preset("gpt3-126mm")
