"""Published models by name: their shapes, one line each."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from types import MappingProxyType

from megalith.config.model import Activation, ModelConfig, Norm, Position, RopeScaling
from megalith.errors import UserError


def _gpt3(
    layers: int, hidden: int, heads: int, init_std: float, vocab: int = 51200, max_seq_len: int = 2048
) -> ModelConfig:
    """GPT-3 (arXiv:2005.14165) as NeMo builds it: learned positions, LayerNorm, tanh GELU, biases, tied head.

    The vocabulary is GPT-2's 50,257 pieces padded to 51,200, a multiple of 128 x 8, as arXiv:2104.04473 and 2205.05198
    count it; NeMo's names follow it too (126m is 125.95 million parameters with the padding, 125.2 million without).
    """
    return ModelConfig(
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        vocab_size=vocab,
        max_seq_len=max_seq_len,
        activation=Activation.GELU_TANH,
        init_std=init_std,
    )


def _bloom(
    layers: int, hidden: int, heads: int, init_std: float, vocab: int = 250880, max_seq_len: int = 2048
) -> ModelConfig:
    """BLOOM (arXiv:2211.05100): ALiBi, a LayerNorm after the embedding, tanh GELU, biases, tied head."""
    return ModelConfig(
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        vocab_size=vocab,
        max_seq_len=max_seq_len,
        position=Position.ALIBI,
        embedding_norm=True,
        activation=Activation.GELU_TANH,
        init_std=init_std,
    )


def _llama(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int = 128256, max_seq_len: int = 131072
) -> ModelConfig:
    """Llama 3.1 (arXiv:2407.21783): scaled RoPE, RMSNorm, SwiGLU, grouped-query attention, no biases, untied head."""
    return ModelConfig(
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        vocab_size=vocab,
        max_seq_len=max_seq_len,
        num_kv_heads=kv_heads,
        ffn_hidden_size=ffn,
        position=Position.ROPE,
        rope_theta=500000.0,
        rope_scaling=RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_seq_len=8192),
        norm=Norm.RMSNORM,
        activation=Activation.SWIGLU,
        linear_bias=False,
        tied_embeddings=False,
    )


# Shapes and init_std of NeMo's sizes (126m to 20b, 40b, 175b): NeMo-Framework-Launcher, conf/training/gpt3. Shapes of
# 22b, 175b, 530b and 1t: arXiv:2205.05198, Table 3, with the init_std of NeMo's rule, sqrt(0.4 / hidden_size), and for
# mt-nlg-530b that of arXiv:2201.11990. BLOOM and Llama: the models' cards.
PRESETS = MappingProxyType(
    {
        "gpt3-126m": _gpt3(12, 768, 12, 0.023),
        "gpt3-1.3b": _gpt3(24, 2048, 16, 0.014),
        "gpt3-5b": _gpt3(24, 4096, 32, 0.01),
        "gpt3-20b": _gpt3(44, 6144, 48, 0.008165),
        "gpt3-22b": _gpt3(48, 6144, 64, 0.008),
        "gpt3-40b": _gpt3(48, 8192, 64, 0.007),
        "gpt3-175b": _gpt3(96, 12288, 96, 0.006),
        "mt-nlg-530b": _gpt3(105, 20480, 128, 0.004),
        "gpt-1t": _gpt3(128, 25600, 160, 0.004),
        "bloom-560m": _bloom(24, 1024, 16, 0.02),
        "bloom-176b": _bloom(70, 14336, 112, 0.0048),
        "llama-3.1-8b": _llama(32, 4096, 32, 8, 14336),
        "llama-3.1-70b": _llama(80, 8192, 64, 8, 28672),
        "llama-3.1-405b": _llama(126, 16384, 128, 8, 53248),
        # learns in minutes on two cores: rotary, and a wide init_std, with which a tied head learns much faster
        "gpt-demo": replace(_gpt3(3, 256, 8, 0.05, vocab=512, max_seq_len=128), position=Position.ROPE),
        "gpt-tiny": _gpt3(2, 64, 4, 0.02, vocab=256, max_seq_len=64),  # the tiny ones are for tests
        "bloom-tiny": _bloom(2, 64, 4, 0.02, vocab=256, max_seq_len=64),
        "llama-tiny": _llama(2, 64, 4, 2, 192, vocab=256, max_seq_len=64),
    }
)


def model_preset(name: str) -> ModelConfig:
    """The published shape called `name`. Raises UserError, with the nearest names, where there is none."""
    if name not in PRESETS:
        raise UserError(unknown_preset(name))
    return PRESETS[name]


def unknown_preset(name: str) -> str:
    """The message for a name that is not a preset, nearest names first."""
    near = get_close_matches(name, PRESETS, n=3, cutoff=0.4) or list(PRESETS)
    return f"preset {name} does not exist; choose {', '.join(near)}"
