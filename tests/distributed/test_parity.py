"""Every layout gives the numbers of one process: losses, gradients, norms and weights, in fp64 to 1e-9."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch

from tests.distributed import mutations
from tests.distributed.pairwise import pairwise
from tests.distributed.parity import FAMILIES, RECOMPUTE, Case, compare, compare_bf16
from tests.distributed.pool import WorkerPool

LAYOUTS = [(2, 1), (3, 1), (4, 1), (1, 2), (1, 3), (1, 4), (2, 2)]
FACTORS = {
    "layout": LAYOUTS,
    "sp": [False, True],
    "family": list(FAMILIES),
    "kv_heads": [1, 2, 4, 12],
    "recompute": list(RECOMPUTE),
    "attention": ["unfused", "sdpa"],
    "sharding": ["none", "optimizer", "full"],
    "optimizer": ["sgd", "adamw"],
    "documents": [False, True],
}


def allowed(row: dict) -> bool:
    return not (row["sp"] and row["layout"][1] == 1)


def as_case(row: dict) -> Case:
    dp, tp = row["layout"]
    return Case(dp, tp, **{key: value for key, value in row.items() if key != "layout"})


def pairwise_cases() -> list[Case]:
    """At least 80 cases: a pairwise cover, and more covers until there are enough."""
    cases: dict[Case, None] = {}
    for seed in range(10):
        for row in pairwise(FACTORS, allowed, seed):
            if len(cases) >= 80 and seed > 0:
                return list(cases)
            cases[as_case(row)] = None
    return list(cases)


def by_world_size(cases: list[Case]) -> list[Case]:
    return sorted(cases, key=lambda case: case.dp * case.tp)


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[int, WorkerPool]]:
    """Pools by world size; starting one ends the one before, so that few processes are up at a time."""
    alive: dict[int, WorkerPool] = {}
    yield alive
    for pool in alive.values():
        pool.close()


def pool_of(world_size: int, pools: dict[int, WorkerPool]) -> WorkerPool:
    if world_size not in pools or not pools[world_size].alive:
        for pool in pools.values():
            pool.close()
        pools.clear()
        pools[world_size] = WorkerPool(world_size)
    return pools[world_size]


def verdict_of(case: Case, pools: dict[int, WorkerPool], dtype: torch.dtype = torch.float64, change=None):
    return pool_of(case.dp * case.tp, pools).run(compare, case, dtype, change)[0]


@pytest.mark.parametrize("case", by_world_size(pairwise_cases()), ids=str)
def test_layout_equals_one_process(case: Case, pools: dict[int, WorkerPool]) -> None:
    verdict = verdict_of(case, pools)
    assert verdict.parted == set()
    assert verdict.difference < 1e-9, verdict


@pytest.mark.slow
def test_full_product_equals_one_process(pools: dict[int, WorkerPool]) -> None:
    """Hours on two cores: every combination of all factors."""
    rows = [dict(zip(FACTORS, values, strict=True)) for values in product(*FACTORS.values())]
    cases = by_world_size([as_case(row) for row in rows if allowed(row)])
    print(f"{len(cases)} cases in the full product")
    wrong = [
        (case, verdict) for case in cases if (verdict := verdict_of(case, pools)).difference >= 1e-9 or verdict.parted
    ]
    assert wrong == []


SP2 = Case(tp=2, sp=True)
FP32_CASES = [
    Case(tp=2, sp=True, optimizer="sgd", family=f, kv_heads=2, recompute="all parts") for f in ("gpt", "llama")
]


@pytest.mark.parametrize("case", FP32_CASES, ids=str)
def test_fp32_equals_one_process(case: Case, pools: dict[int, WorkerPool]) -> None:
    verdict = verdict_of(case, pools, torch.float32)
    assert verdict.parted == set()
    assert verdict.difference < 1e-5, verdict


@pytest.mark.slow
@pytest.mark.parametrize("case", [SP2, Case(tp=2, sp=True, family="llama", recompute="core_attn")], ids=str)
def test_compiled_blocks_equal_one_process(case: Case, pools: dict[int, WorkerPool]) -> None:
    verdict = pool_of(2, pools).run(compare, case, torch.float64, None, True, limit_s=400)[0]
    assert verdict.parted == set()
    assert verdict.difference < 1e-9, verdict


BF16_CASES = [
    Case(tp=2, sp=True, precision="bf16", optimizer="sgd", recompute="all parts"),
    Case(tp=2, precision="bf16", optimizer="sgd", kv_heads=1, family="llama"),
    Case(dp=2, precision="bf16", optimizer="sgd", sharding="full", family="llama"),
]


@pytest.mark.parametrize("case", BF16_CASES, ids=str)
def test_bf16_stays_near_one_process_in_fp32(case: Case, pools: dict[int, WorkerPool]) -> None:
    difference, parted, dtypes = pool_of(2, pools).run(compare_bf16, case)[0]
    assert parted == set()
    assert dtypes == {torch.float32}  # main weights
    assert difference < 0.02  # bf16 rounds to 1 part in 256; sums over 12 heads and 144 features keep that order


MUTATIONS = [
    (mutations.no_sum_of_norm_gradients, SP2),
    (mutations.row_bias_on_each_rank, SP2),
    (mutations.mean_of_means, Case(tp=2)),
    (mutations.mean_of_means, Case(dp=2, sharding="full")),
    (mutations.first_heads_slopes, Case(tp=2, family="bloom")),
    (mutations.own_gradient_of_shared_heads, Case(tp=2, kv_heads=1, optimizer="sgd")),
    (mutations.chunk_input_for_every_layer, Case(tp=2, sp=True)),
    (mutations.maximum_for_minimum, Case(tp=2, optimizer="sgd")),
    (mutations.attention_across_documents, Case(tp=2, sp=True, family="llama", documents=True)),
    (mutations.positions_that_go_on, Case(tp=2, sp=True, documents=True)),
]


@pytest.mark.parametrize(("mutation", "case"), MUTATIONS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_fault_is_seen(mutation, case: Case, pools: dict[int, WorkerPool]) -> None:
    verdict = verdict_of(case, pools, change=mutation)
    assert verdict.difference > 1e-4, verdict
