"""The shape of a decoder: every choice that changes its weights or its arithmetic.

Sizes follow the glossary: `hidden_size` D, `ffn_hidden_size` F, `num_attention_heads` N, `num_kv_heads` K, `head_dim`
H, `vocab_size` V. A field that is None follows from the others through the property of the same meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import gcd


class Position(StrEnum):
    """How a token learns where it stands."""

    LEARNED = "learned"  # GPT-3: a table of vectors added to the embedding
    ALIBI = "alibi"  # BLOOM: a linear penalty on distance (arXiv:2108.12409)
    ROPE = "rope"  # Llama, NeoX: queries and keys rotated by position (arXiv:2104.09864)


class Norm(StrEnum):
    LAYERNORM = "layernorm"
    RMSNORM = "rmsnorm"


class Activation(StrEnum):
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"  # the tanh approximation of GPT-2 and BLOOM
    SWIGLU = "swiglu"  # silu(gate) * up: the MLP has two input projections


class Attention(StrEnum):
    """Which kernel computes softmax(q k^T) v."""

    UNFUSED = "unfused"  # scores are materialised, as in the 2022 papers
    SDPA = "sdpa"  # fused: keeps only q, k, v, the output and one row statistic


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's stretching of the rotary wavelengths (Llama 3.1 model card; Hugging Face `rope_type: llama3`)."""

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_seq_len: int = 8192


@dataclass(frozen=True)
class ModelConfig:
    """One decoder. Presets of published models are in `config/presets.py`."""

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    vocab_size: int
    max_seq_len: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    ffn_hidden_size: int | None = None
    position: Position = Position.LEARNED
    rope_theta: float = 10000.0
    rope_fraction: float = 1.0
    rope_scaling: RopeScaling | None = None
    norm: Norm = Norm.LAYERNORM
    norm_eps: float = 1e-5
    activation: Activation = Activation.GELU
    linear_bias: bool = True
    qkv_bias: bool | None = None
    qk_norm: bool = False
    embedding_norm: bool = False
    parallel_residual: bool = False
    sliding_window: int | None = None
    tied_embeddings: bool = True
    dropout: float = 0.0
    attention_dropout: float = 0.0
    init_std: float = 0.02

    @property
    def kv_heads(self) -> int:
        """Key and value heads; all heads where `num_kv_heads` is not given."""
        return self.num_attention_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def head_width(self) -> int:
        """Elements of one head."""
        return self.hidden_size // self.num_attention_heads if self.head_dim is None else self.head_dim

    @property
    def ffn_width(self) -> int:
        """Elements between the two halves of the MLP; 4 D where `ffn_hidden_size` is not given."""
        return 4 * self.hidden_size if self.ffn_hidden_size is None else self.ffn_hidden_size

    @property
    def gated(self) -> bool:
        """Whether the MLP has a gate beside its up projection."""
        return self.activation is Activation.SWIGLU

    @property
    def has_qkv_bias(self) -> bool:
        """Whether query, key and value carry a bias; as `linear_bias` where `qkv_bias` is not given (Qwen differs)."""
        return self.linear_bias if self.qkv_bias is None else self.qkv_bias

    @property
    def rotary_dim(self) -> int:
        """Elements of each head that are rotated: the leading `rope_fraction`, rounded down to an even number."""
        return int(self.head_width * self.rope_fraction) // 2 * 2

    @property
    def gate_block(self) -> int:
        """Rows of gate, then rows of up, that alternate in the stored gate_up weight.

        At most 128 and such that up to gcd(F, 48) tensor ranks cut between blocks: a plain `Shard(0)` then gives each
        rank matching halves, and a checkpoint does not depend on the tensor size.
        """
        largest = self.ffn_width // gcd(self.ffn_width, 48)
        return max(d for d in range(1, min(128, largest) + 1) if largest % d == 0)
