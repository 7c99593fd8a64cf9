"""Atomic files: whole, or as before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from megalith.files import atomic_writer


def test_the_file_appears_with_the_end_of_the_block(tmp_path: Path) -> None:
    target = tmp_path / "new" / "file.txt"
    with atomic_writer(target) as file:
        file.write(b"hello")
        assert not target.exists()
    assert target.read_bytes() == b"hello"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_older_file_and_no_trace(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "file.txt").write_bytes(b"older")
    with pytest.raises(error), atomic_writer(tmp_path / "file.txt") as file:
        file.write(b"half")
        raise error
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file.txt", b"older")]


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    device = tmp_path / "null"  # as root, a rename onto /dev/null would take it from the whole machine
    os.mkfifo(device)
    for target in (device, tmp_path):
        with pytest.raises(FileExistsError, match="not a file that can be replaced"), atomic_writer(target) as file:
            file.write(b"x")
    assert device.is_fifo() and list(tmp_path.iterdir()) == [device]
