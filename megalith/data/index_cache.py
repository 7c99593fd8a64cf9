"""Sample orders kept on disk: built by one process, mapped into memory by all that need the same, now and later.

A folder per order, named by a digest of all that the order follows from:

    CACHE/<key>/documents.npy ends.npy shuffle.npy     each under a temporary name until it is whole
    CACHE/<key>/description.json                       written last: with it the order is complete
    CACHE/<key>.lock                                   held while building

Who comes while another builds waits for the lock and finds the files; a builder that is killed loses its lock, and the
next one starts over. So a shared folder is filled once, and a folder on each machine once per machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from megalith.data.order import SampleIndex
from megalith.errors import UserError
from megalith.files import atomic_writer

VERSION = 1  # of the rules in order.py: another number never meets older files
_ARRAYS = ("documents", "ends", "shuffle")
_DESCRIPTION = "description.json"


class IndexCache:
    """The orders in one folder. `builds` counts those that this process had to make."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.builds = folder, 0

    def get(self, key: Mapping[str, Any], build: Callable[[], SampleIndex]) -> SampleIndex:
        """The order that `key` describes, read-only and on disk; `build` makes it where it is not there yet.

        Raises UserError where the folder cannot be written.
        """
        text = json.dumps({"version": VERSION, **key}, sort_keys=True)
        place = self.folder / hashlib.sha256(text.encode()).hexdigest()[:32]
        found = _read(place)
        if found is None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                with _lock(place.with_suffix(".lock")):
                    found = _read(place) or self._fill(place, text, build)
            except OSError as error:
                raise UserError(
                    f"{self.folder}: the order of samples cannot be kept there ({error.strerror}); name a folder that "
                    "can be written with data.index_cache"
                ) from error
        return found

    def _fill(self, place: Path, text: str, build: Callable[[], SampleIndex]) -> SampleIndex:
        index = build()
        self.builds += 1
        for outdated in (place / _DESCRIPTION, *place.glob(".*.tmp")):
            outdated.unlink(missing_ok=True)
        for name in _ARRAYS:
            with atomic_writer(place / f"{name}.npy") as file:
                np.save(file, getattr(index, name), allow_pickle=False)
        with atomic_writer(place / _DESCRIPTION) as file:
            file.write(text.encode())
        return _read(place) or index


def _read(place: Path) -> SampleIndex | None:
    """The complete order at `place`; None where there is none, or a damaged one."""
    if not (place / _DESCRIPTION).is_file():
        return None
    try:
        arrays = [np.load(place / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in _ARRAYS]
    except (OSError, ValueError):
        return None
    return SampleIndex(*map(np.asarray, arrays))  # plain arrays: slices of a memmap cost ten times as much


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Alone among the processes that lock `path`, as far as its file system can lock; without that, work is doubled."""
    with open(path, "wb") as file:
        with suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
