"""What several ranks hold stays bitwise the same over bf16 training; first values are the same in every layout."""

from __future__ import annotations

import hashlib

import pytest
import torch

from megalith.config.recipe import Layout, Recipe, Sharding
from megalith.parallel.mesh import data_parallel
from megalith.parallelize.apply import build_model
from megalith.training.optimizer import build_optimizer
from megalith.training.step import TrainStep
from tests.distributed.parity import ACCUMULATION, Case, micro_batches, parted_copies, whole
from tests.parallel.layouts import mesh_of

BF16_STEPS = 10


def parted_after_steps(case: Case) -> tuple[list[str], list[float]]:
    """Copies that differ after any of the steps, and the losses."""
    recipe = case.recipe(num_layers=2)
    mesh = mesh_of(recipe.layout, case.dp)
    model = build_model(recipe, mesh, torch.device("cpu"))
    step = TrainStep(recipe, model, build_optimizer(model, recipe.optimizer), mesh, torch.device("cpu"))
    rank, size = data_parallel(mesh)
    parted, losses = [], []
    for number in range(1, BF16_STEPS + 1):
        mine = [m for m in micro_batches(1, ACCUMULATION * case.dp) if m.index % size == rank]
        losses.append(step(number, mine).loss)
        parted += [f"{what} after step {number}" for what in parted_copies(model)]
    return parted, losses


CASES = [
    Case(tp=2, sp=True, precision="bf16", dropout=0.1),
    Case(tp=2, precision="bf16", kv_heads=1, family="llama"),
    Case(dp=2, precision="bf16", sharding="none"),
    Case(dp=2, tp=2, sp=True, precision="bf16", sharding="none", kv_heads=1, family="neox"),
    Case(dp=2, tp=2, precision="bf16", sharding="full", family="bloom"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_replicas_stay_the_same_in_bf16(case: Case, pool) -> None:
    world_size = case.dp * case.tp
    for parted, losses in pool(world_size).run(parted_after_steps, case):
        assert parted == []
        assert losses[-1] < losses[0] - 0.1  # it does train


LAYOUTS = {
    "tp2": (Layout(2), 1),
    "tp4": (Layout(4, sequence_parallel=True), 1),
    "dp2 tp2": (Layout(2), 2),
    "dp2 tp2, full": (Layout(2, sharding=Sharding.FULL), 2),
    "dp3": (Layout(), 3),
    "dp3, full": (Layout(sharding=Sharding.FULL), 3),
    "dp4, none": (Layout(sharding=Sharding.NONE), 4),
}


def digests(recipe: Recipe, mesh) -> dict[str, str]:
    """A digest of every whole parameter right after building."""
    model = build_model(recipe, mesh, torch.device("cpu"))
    return {n: hashlib.sha256(whole(p).numpy().tobytes()).hexdigest() for n, p in model.named_parameters()}


def differing_first_values(family: str, kv_heads: int) -> dict[str, list[str]]:
    """Names whose first values differ from one process, by layout; tensor sizes split no block of rows evenly."""
    case = Case(family=family, kv_heads=kv_heads)
    sizes = {"num_layers": 1, "hidden_size": 48, "ffn_hidden_size": 240, "vocab_size": 131}
    plain = digests(case.recipe(**sizes), None)
    differing = {}
    for name, (layout, data_parallel_size) in LAYOUTS.items():
        mesh = mesh_of(layout, data_parallel_size)
        if mesh is not None:
            recipe = Recipe(**{**vars(case.recipe(**sizes)), "layout": layout})
            found = digests(recipe, mesh)
            differing[name] = [n for n in plain.keys() | found.keys() if plain.get(n) != found.get(n)]
    return differing


@pytest.mark.parametrize(("family", "kv_heads"), [("gpt", 12), ("llama", 1)])
def test_first_values_do_not_depend_on_the_layout(family: str, kv_heads: int, pool) -> None:
    first, *_ = pool(4).run(differing_first_values, family, kv_heads)
    assert first == {name: [] for name in LAYOUTS}
