"""Every recipe in recipes/ is one that the trainer takes, and fits the machine in its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from megalith.config.presets import model_preset
from megalith.config.reader import read_recipe
from megalith.config.validator import notes
from megalith.tracing.account import account

RECIPES = Path(__file__).parents[2] / "recipes"
PROCESSES = {"laptop": 2, "1gpu": 1, "8xa100": 8, "8xh100": 8}
GIGABYTES = {"laptop": 2, "1gpu": 24, "8xa100": 80, "8xh100": 80}  # for each process


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_validator_takes_it(path: Path) -> None:
    family, size, machine = path.stem.split("_")
    recipe = read_recipe(path, [], PROCESSES[machine])
    assert notes(recipe) == []  # no choice in it is without effect
    assert recipe.batch.num_micro_batches(recipe.layout.data_parallel_size(PROCESSES[machine])) >= 1
    if machine != "laptop":
        preset = model_preset(f"{family}-{size}")
        assert (recipe.model.num_layers, recipe.model.hidden_size) == (preset.num_layers, preset.hidden_size)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_dry_run_says_that_it_fits(path: Path) -> None:
    machine = path.stem.split("_")[2]
    memory = account(read_recipe(path, [], PROCESSES[machine]), PROCESSES[machine])
    assert 0 < memory.peak_bytes < 0.9 * GIGABYTES[machine] * 1e9


def test_there_are_recipes_from_a_laptop_to_a_node_of_gpus() -> None:
    assert {path.stem.split("_")[2] for path in RECIPES.glob("*.yaml")} == set(PROCESSES)
