"""Write a DCP folder so that a failure says its cause: torch hides a full disk behind a check of its own, DCP the rest.

DCP raises CheckpointException, which is no Exception: without `plain_failures` it would pass by whoever reports errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future


class PlainWriter(FileSystemWriter):
    """`FileSystemWriter` that raises the system's own error where writing fails, before DCP sends it to all ranks."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """As its base. Raises OSError where the system refused a write, whatever torch made of it."""
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            raise _system_error(error) or error from None


@contextmanager
def plain_failures() -> Iterator[None]:
    """Around a call of DCP: the OSError that a rank met, else a RuntimeError with every rank's traceback."""
    try:
        yield
    except CheckpointException as error:
        causes = [cause for cause, _ in error.failures.values()]
        found = next((cause for cause in causes if isinstance(cause, OSError)), None)
        raise found or RuntimeError(str(error)) from None


def _system_error(error: BaseException | None) -> OSError | None:
    """The OSError in the chain of what was being handled when `error` was raised."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error
