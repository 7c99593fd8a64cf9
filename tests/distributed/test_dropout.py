"""Dropout masks follow from seeds: recomputation draws them again; ranks differ or agree as their activations do."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import torch.distributed as dist

from megalith.models.dropout import Dropout, dropout, mix
from megalith.parallel.mesh import make_mesh
from tests.distributed.parity import Case, run_steps
from tests.distributed.pool import WorkerPool

DROPOUT = 0.1


@pytest.fixture(scope="module")
def pool():
    pool = WorkerPool(2)
    yield pool
    pool.close()


def gradients_of(case: Case) -> dict[str, np.ndarray]:
    mesh = make_mesh(case.recipe().layout, dist.get_world_size())
    trace = run_steps(case.recipe(), case.dp, mesh, torch.float32)
    return {f"{step} {name}": g.numpy() for step, grads in enumerate(trace.gradients) for name, g in grads.items()}


@pytest.mark.parametrize("recompute", ["core_attn", "all parts", "uniform 1", "uniform 2", "block 2"])
@pytest.mark.parametrize("base", [Case(tp=2, sp=True), Case(tp=2, family="llama"), Case(dp=2, family="bloom")], ids=str)
def test_recomputed_gradients_are_bitwise_those_kept(base: Case, recompute: str, pool: WorkerPool) -> None:
    base = dataclasses.replace(base, dropout=DROPOUT, optimizer="sgd")
    kept = pool.run(gradients_of, base)[0]
    again = pool.run(gradients_of, dataclasses.replace(base, recompute=recompute))[0]
    assert [name for name in kept if not np.array_equal(kept[name], again[name])] == []


def test_dropout_changes_the_gradients(pool: WorkerPool) -> None:
    base = Case(tp=2, sp=True, optimizer="sgd")
    without = pool.run(gradients_of, base)[0]
    with_dropout = pool.run(gradients_of, dataclasses.replace(base, dropout=DROPOUT))[0]
    assert all(not np.array_equal(without[name], with_dropout[name]) for name in without)


def masks_of(case: Case) -> dict[str, np.ndarray]:
    """The first mask that each dropout site of this rank draws in one forward."""
    from megalith.parallelize.apply import build_model

    mesh = make_mesh(case.recipe().layout, dist.get_world_size())
    model = build_model(case.recipe(), mesh, torch.device("cpu"))
    masks: dict[str, np.ndarray] = {}
    for name, module in model.named_modules():
        if isinstance(module, Dropout):

            def look(module: Dropout, inputs: tuple, y: torch.Tensor, name: str = name) -> None:
                masks[name] = dropout(torch.ones_like(y), module.probability, inputs[1], module.site, module.salt)[
                    1
                ].numpy()

            module.register_forward_hook(look)
    tokens = torch.zeros((2, 12), dtype=torch.int64)
    model(tokens, tokens, seed=torch.tensor(7))
    return masks


@pytest.mark.parametrize("sp", [False, True])
def test_ranks_draw_the_same_mask_exactly_where_they_hold_the_same_activations(sp: bool, pool: WorkerPool) -> None:
    first, second = pool.run(masks_of, Case(tp=2, sp=sp, dropout=0.5))
    assert len(first) == 1 + 3 * 3
    for name in first:
        sharded = sp or name.endswith("core.dropout")
        assert np.array_equal(first[name], second[name]) != sharded, name
    everything = [mask.flatten()[:96].tolist() for mask in first.values()]
    assert len({tuple(mask) for mask in everything}) == len(everything), "two sites drew the same mask"


def test_masks_differ_by_step_and_micro_batch_and_keep_their_share() -> None:
    x = torch.ones(1000, 100)
    drawn = [
        dropout(x, DROPOUT, torch.tensor(mix(1, step, index)), torch.tensor(3), 0)[1]
        for step in (1, 2)
        for index in (0, 1)
    ]
    assert len({mask.flatten().numpy().tobytes() for mask in drawn}) == 4
    for mask in drawn:
        assert abs(mask.float().mean().item() - 0.9) < 5 * (0.09 / mask.numel()) ** 0.5
    y, mask = dropout(x, DROPOUT, torch.tensor(5), torch.tensor(3), 0)
    assert torch.equal(y, mask / (1 - DROPOUT)) or torch.allclose(y, mask / (1 - DROPOUT))


def test_no_dropout_in_evaluation() -> None:
    module, x = Dropout(0.5, site=1), torch.ones(8, 8)
    assert not torch.equal(module(x, torch.tensor(1)), x)
    assert torch.equal(module.eval()(x, torch.tensor(1)), x)
