"""Our decoder gives the numbers of Hugging Face transformers: logits, loss and every gradient, on random weights.

fp64 to 1e-10, with what transformers computes in fp32 whatever the dtype taken out of the way: attention runs through
torch's sdpa (its eager softmax is in fp32) and its RMSNorms, in fp32 too, give way to torch's `nn.RMSNorm`. BLOOM
cannot be had so: its softmax and its ALiBi slopes are in fp32 and its GELU has a constant of eight digits; 1e-6 there.
fp32 to 1e-5 with transformers as it is. Norm weights are far from 1, so that a norm left out or twice shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from megalith.config.model import Activation, Attention, ModelConfig, Norm, Position, RopeScaling
from megalith.models.decoder import Decoder
from tests.models import mapping

SEQ_LEN, BATCH, VOCAB = 64, 2, 101
SHAPE: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 48,
    "num_attention_heads": 6,
    "vocab_size": VOCAB,
    "max_seq_len": SEQ_LEN,
}
THEIR_SHAPE: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 48,
    "num_attention_heads": 6,
    "vocab_size": VOCAB,
    "max_position_embeddings": SEQ_LEN,
}
LLAMA: dict[str, Any] = {
    "position": Position.ROPE,
    "norm": Norm.RMSNORM,
    "activation": Activation.SWIGLU,
    "linear_bias": False,
    "ffn_hidden_size": 144,
    "num_kv_heads": 2,
    "tied_embeddings": False,
}
THEIR_LLAMA: dict[str, Any] = THEIR_SHAPE | {
    "intermediate_size": 144,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True, eq=False)
class Family:
    """One model both ways. `fp64`: how near the two come in fp64."""

    name: str
    ours: dict[str, Any]
    their_kind: str
    theirs: dict[str, Any]
    mapped: Callable[..., mapping.State]
    fp64: float = 1e-10

    def __str__(self) -> str:
        return self.name


def bloom(heads: int) -> Family:
    ours = {"position": Position.ALIBI, "embedding_norm": True, "activation": Activation.GELU_TANH}
    theirs = {"n_layer": 2, "hidden_size": 48, "n_head": heads, "vocab_size": VOCAB}
    return Family(
        f"bloom, {heads} heads", ours | {"num_attention_heads": heads}, "Bloom", theirs, mapping.bloom, fp64=1e-6
    )


FAMILIES = (
    Family(
        "gpt2",
        {"activation": Activation.GELU_TANH},
        "GPT2",
        {"n_layer": 2, "n_embd": 48, "n_head": 6, "vocab_size": VOCAB, "n_positions": SEQ_LEN}
        | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "activation_function": "gelu_new"},
        mapping.gpt2,
    ),
    bloom(heads=8),
    bloom(heads=12),
    Family(
        "neox",
        {"position": Position.ROPE, "rope_fraction": 0.25, "parallel_residual": True, "tied_embeddings": False},
        "GPTNeoX",
        THEIR_SHAPE
        | {"intermediate_size": 192, "hidden_act": "gelu", "use_parallel_residual": True}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}},
        mapping.neox,
    ),
    Family(
        "llama 3.1",
        LLAMA
        | {"rope_theta": 500000.0, "head_dim": 16}
        | {"rope_scaling": RopeScaling(8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_seq_len=32)},
        "Llama",
        THEIR_LLAMA
        | {
            "head_dim": 16,
            "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0}
            | {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
        },
        mapping.llama,
    ),
    Family(
        "mistral",
        LLAMA | {"sliding_window": 7, "rope_theta": 1000.0},
        "Mistral",
        THEIR_LLAMA | {"sliding_window": 7, "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
        mapping.llama,
    ),
    Family(
        "qwen2",
        LLAMA | {"qkv_bias": True, "rope_theta": 20000.0, "tied_embeddings": True},
        "Qwen2",
        THEIR_LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}, "tie_word_embeddings": True},
        mapping.llama,
    ),
    Family(
        "qwen3",
        LLAMA | {"qk_norm": True, "head_dim": 12, "rope_theta": 20000.0},
        "Qwen3",
        THEIR_LLAMA | {"head_dim": 12, "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}},
        mapping.llama,
    ),
)


@dataclass(frozen=True)
class Numbers:
    logits: Tensor
    loss: Tensor
    gradients: dict[str, Tensor]


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, targets and a mask that scores about half of them."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCAB, (BATCH, SEQ_LEN + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:], torch.rand((BATCH, SEQ_LEN), generator=generator) < 0.5


def fill(model: Decoder) -> None:
    """Weights as large as keeps scores and activations of order one; norms around 1, not at it; biases not zero."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            norm_weight = "norm" in name and name.endswith("weight")
            parameter.copy_(1 + 0.3 * noise if norm_weight else 0.15 * noise)


def our_config(family: Family) -> ModelConfig:
    return ModelConfig(**(SHAPE | family.ours))


def our_model(family: Family, dtype: torch.dtype, attention: Attention = Attention.SDPA) -> Decoder:
    model = Decoder(our_config(family), attention).to(dtype)
    fill(model)
    return model


def our_numbers(family: Family, dtype: torch.dtype, attention: Attention) -> Numbers:
    model, (tokens, targets, mask) = our_model(family, dtype, attention), batch()
    loss = model(tokens, targets, mask)
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return Numbers(model(tokens).detach(), loss.detach(), family.mapped(gradients, model.config))


def their_model(family: Family, dtype: torch.dtype) -> nn.Module:
    attention = "eager" if family.their_kind == "Bloom" else "sdpa"
    config = getattr(transformers, f"{family.their_kind}Config")(**family.theirs, attn_implementation=attention)
    kind = getattr(
        transformers, f"{family.their_kind}{'LMHeadModel' if family.their_kind == 'GPT2' else 'ForCausalLM'}"
    )
    model = kind(config).to(dtype).eval()
    if dtype == torch.float64:
        norms_in_their_own_dtype(model)
    weights = family.mapped({n: p.detach() for n, p in our_model(family, dtype).named_parameters()}, our_config(family))
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert unexpected == []
    assert set(missing) <= ({"lm_head.weight"} if our_config(family).tied_embeddings else set())
    return model


def norms_in_their_own_dtype(model: nn.Module) -> None:
    """Torch's RMSNorm for transformers', which computes in fp32."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                width, eps = child.get_parameter("weight").shape[0], getattr(child, "variance_epsilon")  # noqa: B009
                norm = nn.RMSNorm(width, eps=eps, dtype=torch.float64)
                setattr(parent, name, norm)


@cache
def their_numbers(family: Family, dtype: torch.dtype) -> Numbers:
    model, (tokens, targets, mask) = their_model(family, dtype), batch()
    logits = model(tokens, use_cache=False).logits.flatten(0, 1)
    losses = F.cross_entropy(logits, targets.flatten(), reduction="none")
    loss = (losses * mask.flatten()).sum()
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return Numbers(logits.detach(), loss.detach(), gradients)


def far(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest element."""
    return ((a - b).abs().max() / b.abs().max()).item()


@pytest.mark.parametrize("attention", list(Attention))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_logits_loss_and_gradients_are_those_of_transformers(
    family: Family, dtype: torch.dtype, attention: Attention
) -> None:
    bound = family.fp64 if dtype == torch.float64 else 1e-5
    ours, theirs = our_numbers(family, dtype, attention), their_numbers(family, dtype)
    assert far(ours.logits, theirs.logits) < bound
    assert far(ours.loss, theirs.loss) < bound
    assert ours.gradients.keys() == theirs.gradients.keys()
    distances = {name: far(ours.gradients[name], gradient) for name, gradient in theirs.gradients.items()}
    assert {name: distance for name, distance in distances.items() if not distance < bound} == {}


SLIPS: dict[str, dict[str, Any]] = {
    "gpt2": {"activation": Activation.GELU},
    "neox": {"parallel_residual": False},
    "llama 3.1": {"rope_scaling": None},
    "mistral": {"sliding_window": 8},
    "qwen2": {"norm_eps": 2e-5},
    "qwen3": {"rope_theta": 10000.0},
}


@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_is_seen(name: str) -> None:
    """The comparison tells each family from its nearest wrong reading."""
    family = next(family for family in FAMILIES if family.name == name)
    wrong = replace(family, ours=family.ours | SLIPS[name])
    ours, theirs = our_numbers(wrong, torch.float64, Attention.SDPA), their_numbers(family, torch.float64)
    assert far(ours.logits, theirs.logits) > 1e-6
