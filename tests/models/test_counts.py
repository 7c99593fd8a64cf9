"""Built models have the published numbers of parameters, and their products the FLOPs of a formula written here."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from megalith.config.model import Activation, Attention, ModelConfig, Norm, Position
from megalith.config.presets import PRESETS
from megalith.models.decoder import Decoder

PUBLISHED = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "bloom-560m": 559_214_592,
    "bloom-176b": 176_247_271_424,
}


def num_parameters(config: ModelConfig) -> int:
    with torch.device("meta"):
        model = Decoder(config)
    return sum(parameter.numel() for parameter in {id(p): p for p in model.parameters()}.values())


@pytest.mark.parametrize("name", PUBLISHED)
def test_built_model_has_the_published_number_of_parameters(name: str) -> None:
    assert num_parameters(PRESETS[name]) == PUBLISHED[name]


@pytest.mark.parametrize("name", [name for name, config in PRESETS.items() if config.position is Position.LEARNED])
def test_built_gpt_has_the_number_of_the_papers_formula(name: str) -> None:
    """arXiv:2104.04473, equation 2, and the final LayerNorm, which it leaves out."""
    c = PRESETS[name]
    h, layers = c.hidden_size, c.num_layers
    assert num_parameters(c) == 12 * layers * h * h + 13 * layers * h + (c.vocab_size + c.max_seq_len) * h + 2 * h


GPT = ModelConfig(2, 24, 6, 101, 16)
LLAMA = ModelConfig(
    *(2, 24, 6, 101, 16, 2),
    ffn_hidden_size=40,
    position=Position.ROPE,
    norm=Norm.RMSNORM,
    activation=Activation.SWIGLU,
    linear_bias=False,
    tied_embeddings=False,
)
VARIANTS = {
    "gpt": GPT,
    "gpt, untied": replace(GPT, tied_embeddings=False),
    "bloom": replace(GPT, position=Position.ALIBI, embedding_norm=True),
    "llama": LLAMA,
    "llama, one key/value head": replace(LLAMA, num_kv_heads=1),
    "llama, wide heads": replace(LLAMA, head_dim=10, qkv_bias=True, qk_norm=True),
    "mistral": replace(LLAMA, sliding_window=5),
    "neox": replace(GPT, position=Position.ROPE, parallel_residual=True, rope_fraction=0.5),
}


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())
def test_parameters_are_counted_once(config: ModelConfig) -> None:
    model = Decoder(config)
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() // 4 for p in model.parameters()}
    assert sum(parameter.numel() for parameter in model.parameters()) == sum(storages.values())
    head = config.vocab_size * config.hidden_size
    tied = num_parameters(replace(config, tied_embeddings=True))
    assert num_parameters(replace(config, tied_embeddings=False)) == tied + head


@pytest.mark.parametrize("attention", list(Attention))
@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())
def test_flops_of_products(config: ModelConfig, attention: Attention) -> None:
    """Forward: 2 for each weight and token, and 4 S N H a token for q k^T and p v, counted without the causal half.

    Backward: twice that, and a fused kernel forms the scores once more.
    """
    batch, seq_len = 3, 16
    c, model = config, Decoder(config, attention)
    weights = c.vocab_size * c.hidden_size + c.num_layers * (
        c.hidden_size * c.head_width * (2 * c.num_attention_heads + 2 * c.kv_heads)
        + c.hidden_size * c.ffn_width * (3 if c.gated else 2)
    )
    core = 4 * seq_len * c.num_layers * c.num_attention_heads * c.head_width
    tokens = torch.zeros(batch, seq_len, dtype=torch.int64)
    with FlopCounterMode(display=False) as forward:
        loss = model(tokens, tokens)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    again = core // 2 if attention is Attention.SDPA else 0
    assert forward.get_total_flops() == batch * seq_len * (2 * weights + core)
    assert backward.get_total_flops() == batch * seq_len * (2 * (2 * weights + core) + again)
