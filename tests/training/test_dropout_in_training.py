"""Dropout over steps on one process: recomputation repeats its masks, and looking at the model changes none of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from megalith.inference.generate import generate
from megalith.inference.sampling import Sampling
from megalith.models.decoder import Decoder
from megalith.parallelize.apply import build_model
from megalith.training.optimizer import build_optimizer
from megalith.training.step import TrainStep
from megalith.training.validation import validation_loss
from tests.distributed.parity import ACCUMULATION, FAMILIES, RECOMPUTE, VOCAB, Case, fill, micro_batches

CPU = torch.device("cpu")
Weights = dict[str, torch.Tensor]


def trained(case: Case, between: Callable[[Decoder], None] = lambda model: None) -> tuple[list[float], Weights]:
    """Losses of three steps and the weights after them; `between` runs before each step."""
    recipe = case.recipe()
    model = build_model(recipe, None, CPU)
    fill(model)
    step = TrainStep(recipe, model, build_optimizer(model, recipe.optimizer), None, CPU)
    losses = []
    for number in (1, 2, 3):
        between(model)
        losses.append(step(number, micro_batches(number, ACCUMULATION)).loss)
    return losses, {name: parameter.detach() for name, parameter in model.named_parameters()}


def parted(a: Weights, b: Weights) -> list[str]:
    return [name for name in a if not torch.equal(a[name], b[name])]


@pytest.mark.parametrize("attention", ["unfused", "sdpa"])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_recomputing_changes_no_bit(family: str, attention: str) -> None:
    case = Case(family=family, kv_heads=4, attention=attention, dropout=0.1, optimizer="sgd")
    losses, weights = trained(case)
    for recompute in RECOMPUTE:
        again, weights_again = trained(dataclasses.replace(case, recompute=recompute))
        assert again == losses, recompute
        assert parted(weights, weights_again) == [], recompute


def validate(model: Decoder) -> None:
    batch = micro_batches(9, 2)
    first = validation_loss(model, batch, None, CPU)
    assert validation_loss(model, batch, None, CPU) == first  # without dropout


def sample(model: Decoder) -> None:
    ids = list(generate(model, [1, 2, 3], 6, Sampling(seed=5)))
    assert list(generate(model, [1, 2, 3], 6, Sampling(seed=5))) == ids
    assert len(ids) == 6 and max(ids) < VOCAB


def draw(model: Decoder) -> None:
    torch.rand(7)


@pytest.mark.parametrize("between", [validate, sample, draw])
def test_looking_at_the_model_changes_no_mask(between: Callable[[Decoder], None]) -> None:
    """Megatron-DeepSpeed #295: attention dropout stayed at 0 after the first generation."""
    case = Case(dropout=0.3)
    losses, weights = trained(case)
    assert trained(dataclasses.replace(case, dropout=0.0))[0] != losses

    def look(model: Decoder) -> None:
        modules = [module.training for module in model.modules()]
        between(model)
        assert [module.training for module in model.modules()] == modules

    looked, weights_looked = trained(case, look)
    assert looked == losses
    assert parted(weights, weights_looked) == []


def test_training_leaves_the_global_random_state() -> None:
    before = torch.get_rng_state()
    trained(Case(dropout=0.3))
    assert torch.equal(torch.get_rng_state(), before)
