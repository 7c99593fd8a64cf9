"""The gradient norm and clipping in every layout, with each parameter's share known by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from megalith.models.decoder import Decoder
from megalith.parallelize.apply import build_model
from megalith.parallelize.tensor import split_over_tensor_ranks
from megalith.training.clip import clip_grad_norm
from tests.distributed.parity import Case, whole
from tests.parallel.layouts import mesh_of

W2 = [
    Case(tp=2),
    Case(tp=2, sp=True, kv_heads=1, family="llama"),
    Case(tp=2, kv_heads=1, family="neox"),
    *(Case(dp=2, sharding=sharding) for sharding in ("none", "optimizer", "full")),
]
W4 = [Case(dp=2, tp=2, sp=True, sharding=sharding, kv_heads=1) for sharding in ("none", "full")] + [Case(tp=4)]


def built(case: Case):
    recipe = case.recipe(num_layers=1)
    mesh = mesh_of(recipe.layout, case.dp)
    return build_model(recipe, mesh, torch.device("cpu")), mesh


def fill_gradients(model: nn.Module, ones: nn.Parameter | None, value: float = 1.0) -> None:
    """`value` in every element of one parameter's gradient (None: of all), 0 in the others'."""
    for parameter in model.parameters():
        filled = ones is None or parameter is ones
        parameter.grad = torch.full_like(parameter, value if filled else 0.0)


def wrong_norms(case: Case) -> list[str]:
    model, mesh = built(case)
    wrong = []
    for name, parameter in model.named_parameters():
        fill_gradients(model, parameter)
        norm, expected = clip_grad_norm(model.parameters(), 0.0, mesh), math.sqrt(parameter.numel())
        wrong += [] if math.isclose(norm, expected, rel_tol=1e-6) else [f"{name}: {norm}, not {expected}"]
    return wrong


@pytest.mark.parametrize("case", [*W2, *W4], ids=str)
def test_each_parameter_counts_once(case: Case, pool) -> None:
    world_size = case.dp * case.tp
    assert pool(world_size).run(wrong_norms, case) == [[]] * world_size


def clipped(case: Case, value: float, limit: float) -> tuple[float, float, list[float]]:
    """(norm before, norm after, the values found in the gradients) for gradients of `value` everywhere."""
    model, mesh = built(case)
    fill_gradients(model, None, value)
    before = clip_grad_norm(model.parameters(), limit, mesh)
    after = clip_grad_norm(model.parameters(), 0.0, mesh)
    gradients = [p.grad for p in model.parameters()]
    return before, after, sorted({v for g in gradients if g is not None for v in whole(g).unique().tolist()})


@pytest.mark.parametrize("case", [Case(tp=2, sp=True), Case(dp=2, sharding="none")], ids=str)
def test_only_a_norm_above_the_limit_is_scaled(case: Case, pool) -> None:
    """DeepSpeed #5150: the coefficient was the maximum, not the minimum, of 1 and limit / norm."""
    before, after, values = pool(2).run(clipped, case, 2.0**-11, 0.0)[0]
    assert before == after and values == [2.0**-11]
    below = pool(2).run(clipped, case, 2.0**-11, before * 1.001)[0]
    assert below == (before, before, [2.0**-11])
    exactly = pool(2).run(clipped, case, 2.0**-11, before)[0]
    assert exactly == (before, before, [2.0**-11])
    above = pool(2).run(clipped, case, 2.0**-11, before / 8)[0]
    assert above[0] == before
    assert above[1] == pytest.approx(before / 8, rel=1e-6)
    assert above[2] == [2.0**-14]


def test_clipping_on_one_process() -> None:
    parameters = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(5))]
    parameters[0].grad, parameters[1].grad = torch.tensor([3.0, 0.0, 0.0]), torch.tensor([[0.0, 4.0], [0.0, 0.0]])
    assert clip_grad_norm(parameters, 10.0, None) == 5.0
    assert parameters[0].grad.tolist() == [3.0, 0.0, 0.0]
    assert clip_grad_norm(parameters, 1.0, None) == 5.0
    assert clip_grad_norm(parameters, 0.0, None) == pytest.approx(1.0, rel=1e-6)
    assert parameters[2].grad is None
    assert clip_grad_norm([], 1.0, None) == 0.0


def without_gradients(case: Case) -> tuple[float, float]:
    """Norms where rank 1 holds no trainable parameter, and where no rank does."""
    model, mesh = built(case)
    fill_gradients(model, None)
    some = list(model.parameters()) if torch.distributed.get_rank() == 0 else []
    one = clip_grad_norm(some, 1.0, mesh)
    return one, clip_grad_norm([], 1.0, mesh)


def test_a_rank_without_gradients_takes_part(pool) -> None:
    (first, nothing), (second, _) = pool(2).run(without_gradients, Case(tp=2))
    assert first == second > 0 and nothing == 0.0


def refusals(case: Case) -> tuple[str, str]:
    recipe = case.recipe(num_layers=1)
    mesh = mesh_of(recipe.layout, case.dp)
    assert mesh is not None
    plain = Decoder(recipe.model, recipe.attention)
    plain.get_submodule("blocks.0.attention").register_parameter("sink", nn.Parameter(torch.zeros(12)))
    with pytest.raises(RuntimeError) as at_build:
        split_over_tensor_ranks(plain, mesh, case.sp)
    stray = nn.Parameter(torch.zeros(7))
    stray.grad = torch.ones(7)
    with pytest.raises(RuntimeError) as at_clip:
        clip_grad_norm([stray], 1.0, mesh)
    return str(at_build.value), str(at_clip.value)


def test_a_parameter_without_a_placement_is_refused(pool) -> None:
    at_build, at_clip = pool(2).run(refusals, Case(tp=2))[0]
    assert at_build.startswith("parameter blocks.0.attention.sink has no role on the tensor axis")
    assert at_clip == "a gradient of shape (7,) declares no placement on the mesh"


def placed(case: Case) -> list[str]:
    """Parameters that are not on the mesh after building, and tied weights that came apart."""
    model, _ = built(case)
    strays = [name for name, parameter in model.named_parameters() if not isinstance(parameter, DTensor)]
    if case.recipe().model.tied_embeddings and model.head.weight is not model.embedding.token.weight:
        strays.append("head.weight")
    return strays


@pytest.mark.parametrize("case", W2, ids=str)
def test_every_parameter_is_placed_and_tied_ones_stay_tied(case: Case, pool) -> None:
    assert pool(2).run(placed, case) == [[], []]
