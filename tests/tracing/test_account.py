"""The account of a dry run equals what real processes hold while they train, in every way of sharing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from megalith.config.model import ModelConfig
from megalith.config.presets import model_preset
from megalith.config.recipe import (
    Batch,
    Granularity,
    Layout,
    Optimizer,
    OptimizerName,
    Precision,
    Recipe,
    Recompute,
    RecomputeMethod,
    Sharding,
)
from megalith.data.loader import MicroBatch
from megalith.models.decoder import Decoder
from megalith.parallel.mesh import data_parallel, make_mesh
from megalith.parallelize.apply import build_model
from megalith.tracing.account import MemoryAccount, account
from megalith.tracing.meter import Meter
from megalith.tracing.trace import Part, trace
from megalith.training.optimizer import build_optimizer
from megalith.training.step import TrainStep
from tests.distributed.pool import WorkerPool
from tests.tracing.cases import CORE_ATTN, FULL, NONE, recipe

MODEL = replace(model_preset("gpt-tiny"), num_layers=4, vocab_size=251)
CPU = torch.device("cpu")


class Held(NamedTuple):
    """Bytes on one rank; `rest` is the most that there was at once in the first step besides weights and optimizer."""

    weights: int
    gradients: int
    optimizer: int
    rest: int


def case_of(layout: Layout, world_size: int, micro_batches: int, model: ModelConfig = MODEL, **choices) -> Recipe:
    case = replace(recipe(model, 2, 32, **choices), layout=layout)
    return replace(case, batch=Batch(32, 2, 2 * micro_batches * layout.data_parallel_size(world_size)))


def held(case: Recipe) -> Held:
    """Train two steps on this worker (or alone) and count."""
    mesh = make_mesh(case.layout, dist.get_world_size()) if dist.is_initialized() else None
    model = build_model(case, mesh, CPU)
    optimizer = build_optimizer(model, case.optimizer)
    step = TrainStep(case, model, optimizer, mesh, CPU)
    shape = (case.batch.micro_batch_size, case.batch.seq_len)
    ids, mask = torch.zeros(shape, dtype=torch.int64), torch.ones(shape, dtype=torch.bool)
    count = case.batch.num_micro_batches(data_parallel(mesh)[1])
    meter, seen = Meter(), []

    def before_update(*_) -> None:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        seen.append((local_bytes(gradients), meter.peak_bytes))

    optimizer.register_step_pre_hook(before_update)
    with meter:
        step(1, [MicroBatch(ids, ids, mask, index) for index in range(count)])
    moments = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return Held(local_bytes(list(model.parameters())), seen[0][0], local_bytes(moments), seen[0][1])


def local_bytes(tensors: list) -> int:
    return sum((tensor.to_local() if isinstance(tensor, DTensor) else tensor).nbytes for tensor in tensors)


def assert_equal(told: MemoryAccount, real: Held) -> None:
    assert (told.weights_bytes, told.gradients_bytes, told.optimizer_bytes) == real[:3]
    assert told.peak_bytes - told.weights_bytes - told.optimizer_bytes == pytest.approx(real.rest, rel=0.15)


@pytest.fixture(scope="module")
def four_workers() -> Iterator[WorkerPool]:
    pool = WorkerPool(4)
    yield pool
    pool.close()


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_one_process(micro_batches: int) -> None:
    case = case_of(Layout(), 1, micro_batches, precision=Precision.FP32)
    assert_equal(account(case, 1), held(case))


@pytest.mark.parametrize("choice", [CORE_ATTN, FULL, Recompute(Granularity.FULL, num_layers=2)])
def test_recomputation(choice: Recompute) -> None:
    case = case_of(Layout(), 1, 1, precision=Precision.FP32, recompute=choice)
    assert_equal(account(case, 1), held(case))


LAYOUTS = (Layout(2, True), Layout(1, False, Sharding.NONE), Layout(), Layout(1, False, Sharding.FULL))


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_two_processes(layout: Layout, precision: Precision, two_workers: WorkerPool) -> None:
    for micro_batches in (1, 2):
        case = case_of(layout, 2, micro_batches, precision=precision)
        assert_equal(account(case, 2), two_workers.run(held, case)[0])


def test_four_processes(four_workers: WorkerPool) -> None:
    untied = replace(MODEL, tied_embeddings=False)
    for sharding in Sharding:
        case = case_of(Layout(2, True, sharding), 4, 2, untied, precision=Precision.BF16)
        assert_equal(account(case, 4), four_workers.run(held, case)[0])


def test_sgd_has_no_state_but_momentum() -> None:
    case = case_of(Layout(), 1, 1, precision=Precision.FP32)
    for momentum in (0.0, 0.9):
        changed = replace(case, optimizer=Optimizer(OptimizerName.SGD, lr=0.1, momentum=momentum))
        assert_equal(account(changed, 1), held(changed))


def test_blocks_that_recompute_and_blocks_that_keep() -> None:
    """`block` recomputes the first layers alone; `uniform` keeps one input a chunk."""

    def layers_bytes(choice: Recompute) -> int:
        return account(replace(case_of(Layout(), 1, 1), recompute=choice), 1).layers_bytes

    kept, inputs = layers_bytes(NONE) // 4, 2 * 32 * 64 * 2
    assert layers_bytes(FULL) == 4 * inputs
    assert layers_bytes(Recompute(Granularity.FULL, num_layers=3)) == 2 * inputs
    assert layers_bytes(Recompute(Granularity.FULL, (), RecomputeMethod.BLOCK, 3)) == 3 * inputs + kept


def test_175b_on_1024_ranks_is_told_in_seconds() -> None:
    case = recipe("gpt3-175b", 1, 2048, 8, True, CORE_ATTN)
    case = replace(case, layout=replace(case.layout, sharding=Sharding.FULL), batch=Batch(2048, 1, 1536))
    start = time.monotonic()
    told = account(case, 1024)
    assert time.monotonic() - start < 20
    assert told.num_parameters == pytest.approx(175e9, rel=0.01)
    assert told.weights_bytes == pytest.approx(told.num_parameters * 4 / 1024, rel=0.01)
    assert told.layers_bytes == pytest.approx(34 * 2048 * 12288 * 96 / 8, rel=0.01)


def test_table_and_json_hold_every_row() -> None:
    told = account(case_of(Layout(), 1, 1, precision=Precision.FP32), 1)
    assert "optimizer" in str(told) and "MiB" in str(told)
    assert told.as_tree()["peak_bytes"] == told.peak_bytes


@pytest.mark.parametrize("changes", [{}, {"tied_embeddings": False}, {"vocab_size": 255}, {"vocab_size": 257}], ids=str)
@pytest.mark.parametrize("world_size", [1, 4])
def test_parameters_are_those_of_the_model(changes: dict, world_size: int) -> None:
    """Tied weights count once, and no padding of the vocabulary counts, whatever the layout."""
    config = replace(MODEL, **changes)
    with torch.device("meta"):
        model = Decoder(config)
    case = case_of(Layout(world_size), world_size, 1, config, precision=Precision.FP32)
    assert account(case, world_size).num_parameters == sum(parameter.numel() for parameter in model.parameters())
    if world_size == 1:
        parts = {part: trace(case, part).num_parameters for part in Part}
        whole = parts[Part.EMBEDDING] + config.num_layers * parts[Part.LAYER] + parts[Part.HEAD]
        assert whole == account(case, 1).num_parameters
