"""Worker pools that all modules of this folder share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.distributed.pool import WorkerPool


@pytest.fixture(scope="package")
def pool() -> Iterator[Callable[[int], WorkerPool]]:
    """`pool(world_size)`; one that ended through a failure is started anew."""
    pools: dict[int, WorkerPool] = {}

    def of(world_size: int) -> WorkerPool:
        if world_size not in pools or not pools[world_size].alive:
            pools[world_size] = WorkerPool(world_size)
        return pools[world_size]

    yield of
    for started in pools.values():
        started.close()
