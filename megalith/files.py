"""Files that appear whole or not at all: written under a temporary name, forced to disk, then renamed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def temporary_name(path: Path) -> Path:
    """A hidden name beside `path`, of this process alone, so that two writers never share one half-written file."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def publish(file: BinaryIO, path: Path) -> None:
    """Close the open temporary `file` with its bytes on disk and give it the name `path`."""
    file.flush()
    os.fsync(file.fileno())
    file.close()
    os.replace(file.name, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Force the names in `folder` to disk, so that a rename outlives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """A binary file that becomes `path` when the block ends, and leaves no trace when the block raises.

    Raises FileExistsError where `path` is a folder or a device: a rename would put a file in place of /dev/null.
    """
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "not a file that can be replaced", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    with open(temporary, "wb") as file:
        try:
            yield file
            publish(file, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
