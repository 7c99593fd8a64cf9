"""Recipes of single layers, and what a worker measures of them on real tensors."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist

from megalith.config.model import Attention, ModelConfig
from megalith.config.presets import model_preset
from megalith.config.recipe import (
    Batch,
    Data,
    Granularity,
    Layout,
    Precision,
    Recipe,
    Recompute,
    RecomputeModule,
)
from megalith.parallel.mesh import make_mesh
from megalith.tracing.trace import Part, Trace, measure, one_layer

NONE = Recompute()
CORE_ATTN = Recompute(Granularity.SELECTIVE, (RecomputeModule.CORE_ATTN,))
NORM = Recompute(Granularity.SELECTIVE, (RecomputeModule.NORM,))
MLP_ACT = Recompute(Granularity.SELECTIVE, (RecomputeModule.MLP_ACT,))
ALL_PARTS = Recompute(Granularity.SELECTIVE, tuple(RecomputeModule))
FULL = Recompute(Granularity.FULL)
RECOMPUTE = {
    "none": NONE,
    "core_attn": CORE_ATTN,
    "norm": NORM,
    "mlp_act": MLP_ACT,
    "all parts": ALL_PARTS,
    "full": FULL,
}


def recipe(
    model: ModelConfig | str,
    micro_batch_size: int,
    seq_len: int,
    tensor_parallel_size: int = 1,
    sequence_parallel: bool = False,
    recompute: Recompute = NONE,
    attention: Attention = Attention.UNFUSED,
    precision: Precision = Precision.BF16,
    dropout: float = 0.1,
) -> Recipe:
    """A recipe of which nothing but a layer is wanted; dropout in attention too where it is unfused."""
    config = model_preset(model) if isinstance(model, str) else model
    attention_dropout = dropout if attention is Attention.UNFUSED else 0.0
    return Recipe(
        model=replace(config, dropout=dropout, attention_dropout=attention_dropout),
        data=Data("unused"),
        batch=Batch(seq_len, micro_batch_size, micro_batch_size),
        train_steps=1,
        output="unused",
        precision=precision,
        attention=attention,
        layout=Layout(tensor_parallel_size, sequence_parallel),
        recompute=recompute,
    )


def measured(case: Recipe, part: Part) -> Trace:
    """`part` of the recipe's one-layer model on real tensors, with real collectives where this is a worker."""
    mesh = make_mesh(case.layout, dist.get_world_size()) if dist.is_initialized() else None
    model = one_layer(case, mesh)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.01)
    return measure(model, case, part, mesh)
