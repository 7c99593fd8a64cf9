"""Two workers for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.pool import WorkerPool


@pytest.fixture(scope="session")
def two_workers() -> Iterator[WorkerPool]:
    pool = WorkerPool(2)
    yield pool
    pool.close()
