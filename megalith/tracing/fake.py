"""A world of many ranks inside one process, seen from rank 0: nothing is sent, no tensor has bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def fake_world(world_size: int) -> Iterator[None]:
    """Rank 0 of `world_size` ranks while entered; the process has no group before and none after.

    Raises RuntimeError where the process has joined a group already, whose place the fake one would take.
    """
    if dist.is_initialized():
        raise RuntimeError(
            f"cannot trace {world_size} ranks here: this process has joined a real process group "
            f"({dist.get_backend()}, {dist.get_world_size()} ranks); trace before joining, or in another process"
        )
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()
        forget_meshes()


def forget_meshes() -> None:
    """Drop what DTensor remembers of sharding: its entries name the fake world's meshes, which equal real ones."""
    from torch.distributed.tensor import DTensor

    DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()  # type: ignore[attr-defined]
    torch._C._clear_DTensor_sharding_propagator_cache()  # type: ignore[attr-defined]
