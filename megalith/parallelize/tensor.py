"""The role table: which parallel layer stands in for which module of the plain decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from megalith.config.model import ModelConfig
from megalith.models.core_attention import CoreAttention
from megalith.models.decoder import Decoder
from megalith.models.dropout import Dropout
from megalith.parallel.attention import ParallelQueryKeyValue
from megalith.parallel.collectives import TensorGroup
from megalith.parallel.linear import ColumnParallelLinear, RowParallelLinear
from megalith.parallel.norm import ParallelNorm, ParallelPosition
from megalith.parallel.vocab import VocabParallelCrossEntropy, VocabParallelEmbedding, VocabParallelHead

Role = Callable[[Any, ModelConfig, TensorGroup], Any]


def _norm(module: Any, config: ModelConfig, group: TensorGroup) -> nn.Module:
    return module if isinstance(module, nn.Identity) else ParallelNorm(module, group, group.tokens_sharded)


def _head_norm(module: Any, config: ModelConfig, group: TensorGroup) -> nn.Module:
    return module if isinstance(module, nn.Identity) else ParallelNorm(module, group, sharded=True)


def _token_dropout(module: Dropout, config: ModelConfig, group: TensorGroup) -> Dropout:
    """Each rank draws masks of its own where it holds tokens of its own; else all must draw the same."""
    module.salt = group.rank + 1 if group.tokens_sharded else 0
    return module


def _own_heads(module: CoreAttention, config: ModelConfig, group: TensorGroup) -> CoreAttention:
    """Core attention sees this rank's heads: their ALiBi slopes, and dropout masks of their own."""
    heads = config.num_attention_heads // group.size
    module.slopes = module.slopes[group.rank * heads : (group.rank + 1) * heads]
    module.dropout.salt = group.rank + 1
    return module


MODEL_ROLES: dict[str, Role] = {
    "embedding.token": lambda module, config, group: VocabParallelEmbedding(module, group),
    "embedding.position": lambda module, config, group: module and ParallelPosition(module, group),
    "embedding.norm": _norm,
    "embedding.dropout": _token_dropout,
    "final_norm": _norm,
    "head": lambda module, config, group: VocabParallelHead(module, group),
    "loss": lambda module, config, group: VocabParallelCrossEntropy(config.vocab_size, group),
}
BLOCK_ROLES: dict[str, Role] = {
    "attention_norm": _norm,
    "attention.qkv": lambda module, config, group: ParallelQueryKeyValue(module, config, group),
    "attention.query_norm": _head_norm,
    "attention.key_norm": _head_norm,
    "attention.core": _own_heads,
    "attention.output": lambda module, config, group: RowParallelLinear(module, group),
    "attention_dropout": _token_dropout,
    "mlp_norm": _norm,
    "mlp.up": lambda module, config, group: ColumnParallelLinear(module, group),
    "mlp.gate_up": lambda module, config, group: ColumnParallelLinear(module, group),
    "mlp.act": lambda module, config, group: module,
    "mlp.down": lambda module, config, group: RowParallelLinear(module, group),
    "mlp_dropout": _token_dropout,
}


def split_over_tensor_ranks(model: Decoder, mesh: DeviceMesh, sequence_parallel: bool) -> None:
    """Replace every module by its role, in place; parameters (real or meta) become DTensors on the axis "tp".

    Raises RuntimeError where a parameter has no role: a new module must say how it is split.
    """
    group = TensorGroup.of(mesh, sequence_parallel)
    _apply(model, MODEL_ROLES, model.config, group)
    model.tie()
    for block in model.blocks:
        _apply(block, BLOCK_ROLES, model.config, group)
    for name, parameter in model.named_parameters():
        if not hasattr(parameter, "placements"):
            raise RuntimeError(f"parameter {name} has no role on the tensor axis; give its module a line in {__name__}")


def _apply(root: nn.Module, roles: dict[str, Role], config: ModelConfig, group: TensorGroup) -> None:
    for path, role in roles.items():
        parent_path, _, name = path.rpartition(".")
        parent = root.get_submodule(parent_path)
        if hasattr(parent, name):
            setattr(parent, name, role(getattr(parent, name), config, group))
