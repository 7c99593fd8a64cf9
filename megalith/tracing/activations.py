"""Activations of one micro-batch on a rank, composed of traced parts as recomputation tells."""

from __future__ import annotations

from dataclasses import dataclass, replace

from megalith.config.recipe import Granularity, Recipe, RecomputeMethod
from megalith.tracing.trace import Part, compute_dtype, trace


@dataclass(frozen=True)
class Activations:
    """Bytes that embedding, all layers and head (with its logits) keep; what comes on top while one layer or the head
    runs backward (the layer's own gradients and that of the head's weight too); and what the other layers of a chunk
    make again before that, where `chunk` layers recompute together.
    """

    embedding: int
    layers: int
    head: int
    layer_at_work: int
    head_at_work: int
    made_again: int
    chunk: int


def activations(recipe: Recipe) -> Activations:
    """Raises RuntimeError where this process has joined a process group."""
    embedding, head, layer = (trace(recipe, part) for part in (Part.EMBEDDING, Part.HEAD, Part.LAYER))
    choice, num_layers = recipe.recompute, recipe.model.num_layers
    kept, again, chunk = layer.kept_bytes * num_layers, 0, 1
    if choice.granularity is Granularity.FULL:
        plain = trace(replace(recipe, recompute=replace(choice, granularity=Granularity.NONE)), Part.LAYER)
        recomputing = min(choice.num_layers, num_layers)
        if choice.method is RecomputeMethod.UNIFORM:
            kept, chunk = layer.kept_bytes * -(-num_layers // recomputing), recomputing
            again = plain.kept_bytes * (chunk - 1)
        else:
            kept = layer.kept_bytes * recomputing + plain.kept_bytes * (num_layers - recomputing)
    head_weight = -(-recipe.model.vocab_size // recipe.layout.tensor_parallel_size) * recipe.model.hidden_size
    return Activations(
        embedding=embedding.kept_bytes,
        layers=kept,
        head=head.kept_bytes,
        layer_at_work=layer.peak_bytes - layer.kept_bytes + head_weight * compute_dtype(recipe).itemsize,
        head_at_work=head.peak_bytes - head.kept_bytes,
        made_again=again,
        chunk=chunk,
    )
