"""Our weights (or their gradients) under the names and in the row order of Hugging Face transformers.

Only rows move, so the same function carries a state dict and a dict of gradients. It is written from transformers'
modelling code and not from Megalith's converters, so that tests of either have a second opinion.

# N query heads  K key/value heads  H head width  F feed-forward width
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from megalith.config.model import ModelConfig

State = dict[str, Tensor]


def key_and_value(key_value: Tensor, config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Ours: for each head its H key rows, then its H value rows."""
    key, value = key_value.unflatten(0, (config.kv_heads, 2, config.head_width)).unbind(1)
    return key.flatten(0, 1), value.flatten(0, 1)


def gate_and_up(gate_up: Tensor, config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Ours: blocks of gate rows and of up rows in turn."""
    gate, up = gate_up.unflatten(0, (-1, 2, config.gate_block)).unbind(1)
    return gate.flatten(0, 1), up.flatten(0, 1)


def by_head(query: Tensor, key_value: Tensor, config: ModelConfig) -> Tensor:
    """NeoX and BLOOM: for each head its query, key and value rows."""
    parts = [x.unflatten(0, (config.num_attention_heads, -1, config.head_width)) for x in (query, key_value)]
    return torch.cat(parts, 1).flatten(0, 2)


def one_after_another(query: Tensor, key_value: Tensor, config: ModelConfig) -> Tensor:
    """GPT-2: all query rows, all key rows, all value rows."""
    return torch.cat((query, *key_and_value(key_value, config)))


class _Names:
    """Collects renamed tensors: each `move` takes one from ours, so what is left at the end was forgotten."""

    def __init__(self, ours: Mapping[str, Tensor]) -> None:
        self.ours, self.theirs = dict(ours), State()

    def move(self, name: str, to: str) -> None:
        for kind in ("weight", "bias"):
            if f"{name}.{kind}" in self.ours:
                self.theirs[f"{to}.{kind}"] = self.ours.pop(f"{name}.{kind}")

    def move_split(self, name: str, to: tuple[str, ...], split: Callable, config: ModelConfig) -> None:
        for kind in ("weight", "bias"):
            if f"{name}.{kind}" in self.ours:
                parts = split(self.ours.pop(f"{name}.{kind}"), config)
                self.theirs |= {f"{path}.{kind}": part for path, part in zip(to, parts, strict=True)}

    def move_qkv(self, name: str, to: str, join: Callable, config: ModelConfig) -> None:
        for kind in ("weight", "bias"):
            query, key_value = (self.ours.pop(f"{name}.{part}.{kind}") for part in ("query", "key_value"))
            self.theirs[f"{to}.{kind}"] = join(query, key_value, config)

    def done(self) -> State:
        assert not self.ours, f"not mapped: {sorted(self.ours)}"
        return self.theirs


def gpt2(ours: Mapping[str, Tensor], config: ModelConfig) -> State:
    """`GPT2LMHeadModel`; its linear layers (Conv1D) store weights transposed."""
    names = _Names(ours)
    names.move("embedding.token", "transformer.wte")
    names.move("embedding.position", "transformer.wpe")
    for i in range(config.num_layers):
        block, layer = f"blocks.{i}", f"transformer.h.{i}"
        names.move(f"{block}.attention_norm", f"{layer}.ln_1")
        names.move_qkv(f"{block}.attention.qkv", f"{layer}.attn.c_attn", one_after_another, config)
        names.move(f"{block}.attention.output", f"{layer}.attn.c_proj")
        names.move(f"{block}.mlp_norm", f"{layer}.ln_2")
        names.move(f"{block}.mlp.up", f"{layer}.mlp.c_fc")
        names.move(f"{block}.mlp.down", f"{layer}.mlp.c_proj")
    names.move("final_norm", "transformer.ln_f")
    theirs = names.done()
    return {n: t.T if n.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")) else t for n, t in theirs.items()}


def bloom(ours: Mapping[str, Tensor], config: ModelConfig) -> State:
    """`BloomForCausalLM`."""
    names = _Names(ours)
    names.move("embedding.token", "transformer.word_embeddings")
    names.move("embedding.norm", "transformer.word_embeddings_layernorm")
    for i in range(config.num_layers):
        block, layer = f"blocks.{i}", f"transformer.h.{i}"
        names.move(f"{block}.attention_norm", f"{layer}.input_layernorm")
        names.move_qkv(f"{block}.attention.qkv", f"{layer}.self_attention.query_key_value", by_head, config)
        names.move(f"{block}.attention.output", f"{layer}.self_attention.dense")
        names.move(f"{block}.mlp_norm", f"{layer}.post_attention_layernorm")
        names.move(f"{block}.mlp.up", f"{layer}.mlp.dense_h_to_4h")
        names.move(f"{block}.mlp.down", f"{layer}.mlp.dense_4h_to_h")
    names.move("final_norm", "transformer.ln_f")
    return names.done()


def neox(ours: Mapping[str, Tensor], config: ModelConfig) -> State:
    """`GPTNeoXForCausalLM` in memory; files call the head embed_out."""
    names = _Names(ours)
    names.move("embedding.token", "gpt_neox.embed_in")
    for i in range(config.num_layers):
        block, layer = f"blocks.{i}", f"gpt_neox.layers.{i}"
        names.move(f"{block}.attention_norm", f"{layer}.input_layernorm")
        names.move_qkv(f"{block}.attention.qkv", f"{layer}.attention.query_key_value", by_head, config)
        names.move(f"{block}.attention.output", f"{layer}.attention.dense")
        names.move(f"{block}.mlp_norm", f"{layer}.post_attention_layernorm")
        names.move(f"{block}.mlp.up", f"{layer}.mlp.dense_h_to_4h")
        names.move(f"{block}.mlp.down", f"{layer}.mlp.dense_4h_to_h")
    names.move("final_norm", "gpt_neox.final_layer_norm")
    names.move("head", "lm_head")
    return names.done()


def llama(ours: Mapping[str, Tensor], config: ModelConfig) -> State:
    """`LlamaForCausalLM`, and Mistral, Qwen2 and Qwen3, which share its names."""
    names = _Names(ours)
    names.move("embedding.token", "model.embed_tokens")
    for i in range(config.num_layers):
        block, layer = f"blocks.{i}", f"model.layers.{i}"
        attention = f"{layer}.self_attn"
        names.move(f"{block}.attention_norm", f"{layer}.input_layernorm")
        names.move(f"{block}.attention.qkv.query", f"{attention}.q_proj")
        both = (f"{attention}.k_proj", f"{attention}.v_proj")
        names.move_split(f"{block}.attention.qkv.key_value", both, key_and_value, config)
        names.move(f"{block}.attention.query_norm", f"{attention}.q_norm")
        names.move(f"{block}.attention.key_norm", f"{attention}.k_norm")
        names.move(f"{block}.attention.output", f"{attention}.o_proj")
        names.move(f"{block}.mlp_norm", f"{layer}.post_attention_layernorm")
        names.move_split(
            f"{block}.mlp.gate_up", (f"{layer}.mlp.gate_proj", f"{layer}.mlp.up_proj"), gate_and_up, config
        )
        names.move(f"{block}.mlp.down", f"{layer}.mlp.down_proj")
    names.move("final_norm", "model.norm")
    names.move("head", "lm_head")
    return names.done()
