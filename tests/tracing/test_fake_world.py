"""A trace leaves nothing behind in its process, and does not push a real group aside."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from megalith.tracing.fake import fake_world
from megalith.tracing.trace import Part, trace
from tests.distributed.parity import Case, compare
from tests.distributed.pool import WorkerPool
from tests.tracing.cases import recipe


def test_no_group_is_left_and_another_can_come() -> None:
    with fake_world(1024):
        assert (dist.get_rank(), dist.get_world_size()) == (0, 1024)
    assert not dist.is_initialized()
    first = trace(recipe("gpt-tiny", 1, 32, 2), Part.LAYER)
    assert trace(recipe("gpt-tiny", 1, 32, 2), Part.LAYER) == first
    assert not dist.is_initialized()


def test_group_is_left_after_a_failure_too() -> None:
    with pytest.raises(ValueError, match="broken"), fake_world(2):
        raise ValueError("broken")
    assert not dist.is_initialized()


def refuses() -> str:
    with pytest.raises(RuntimeError, match="real process group") as refusal:
        trace(recipe("gpt-tiny", 1, 32, 2), Part.LAYER)
    dist.all_reduce(torch.ones(1))  # the real group still works
    return str(refusal.value)


def test_refused_beside_a_real_group(two_workers: WorkerPool) -> None:
    assert "gloo, 2 ranks" in two_workers.run(refuses)[0]


def trace_between(rendezvous: str) -> None:
    """Leave the real group, trace the same mesh on a fake one, join a real group again."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    for part in Part:
        trace(recipe("gpt-tiny", 1, 32, 2, True), part)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size)


def test_real_training_after_a_trace_is_right(tmp_path) -> None:
    """DTensor remembers sharding by mesh, and the fake mesh equals the real one: what it remembers must be dropped."""
    workers = WorkerPool(2)
    try:
        workers.run(trace_between, str(tmp_path / "rendezvous"))
        for case in (Case(tp=2, sp=True), Case(dp=2, sharding="full")):
            verdict = workers.run(compare, case)[0]
            assert verdict.difference < 1e-9, verdict
    finally:
        workers.close()
