"""The order in which a plain decoder becomes the model that a recipe trains."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh

from megalith.config.recipe import Recipe
from megalith.models.decoder import Decoder
from megalith.models.init import initialise
from megalith.parallelize.compiled import compile_blocks
from megalith.parallelize.recompute import recompute
from megalith.parallelize.shard import shard_over_data_ranks
from megalith.parallelize.share import share
from megalith.parallelize.tensor import split_over_tensor_ranks


def build_model(
    recipe: Recipe, mesh: DeviceMesh | None, device: torch.device, main_dtype: torch.dtype = torch.float32
) -> Decoder:
    """The recipe's model with first values on `device`; without a mesh a plain model on one process."""
    model = assemble(recipe, mesh, main_dtype)
    if recipe.compile:
        compile_blocks(model)
    if mesh is not None:
        shard_over_data_ranks(model, mesh, recipe.layout.sharding, recipe.precision)
    model.to_empty(device=device)
    model.tie()
    initialise(model, recipe.model, recipe.seed, share)
    return model


def assemble(recipe: Recipe, mesh: DeviceMesh | None, dtype: torch.dtype) -> Decoder:
    """The layers that the recipe trains, split over tensor ranks and recomputing; on the meta device, without values.

    Meta, so that no rank ever holds more than its share. Data ranks play no part yet.
    """
    with torch.device("meta"):
        model = Decoder(recipe.model, recipe.attention).to(dtype)
    if mesh is not None and mesh["tp"].size() > 1:
        split_over_tensor_ranks(model, mesh, recipe.layout.sequence_parallel)
    recompute(model, recipe.recompute)
    return model
