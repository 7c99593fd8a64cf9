"""Micro-batches times ranks give the global batch exactly, on any number of machines, or the recipe is refused."""

from dataclasses import replace

import pytest

from megalith.config.model import ModelConfig
from megalith.config.recipe import Batch, Data, Layout, Recipe
from megalith.config.validator import faults

MODEL = ModelConfig(num_layers=1, hidden_size=8, num_attention_heads=4, vocab_size=11, max_seq_len=4)
RECIPE = Recipe(MODEL, Data("tokens"), Batch(4, 1, 1), train_steps=1, output="run")


@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize("gpus", [1, 4, 8])
@pytest.mark.parametrize("tensor", [1, 4])
@pytest.mark.parametrize("micro, total", [(1, 24), (2, 48), (3, 24), (4, 36), (5, 24)])
def test_the_step_reads_the_global_batch(nodes, gpus, tensor, micro, total):
    world_size, batch = nodes * gpus, Batch(4, micro, total)
    recipe = replace(RECIPE, batch=batch, layout=Layout(tensor_parallel_size=tensor))
    refused = faults(recipe, world_size)
    data_parallel_size = recipe.layout.data_parallel_size(world_size)
    if world_size % tensor or total % (micro * data_parallel_size):
        assert any(str(total) in fault or "tensor_parallel_size" in fault for fault in refused)
    else:
        assert refused == []
        assert batch.num_micro_batches(data_parallel_size) * micro * data_parallel_size == total
