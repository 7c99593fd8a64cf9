"""What the user can put right is told apart from faults of the program."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from megalith.errors import UserError, user_error


def test_a_full_disk_and_a_file_in_the_way_say_the_way_out(tmp_path: Path) -> None:
    assert str(user_error(OSError(errno.ENOSPC, "No space left on device"))) == (
        "No space left on device; free some space or choose a place on another disk"
    )
    (tmp_path / "file").touch()
    with pytest.raises(OSError) as caught:
        (tmp_path / "file" / "folder").mkdir()
    assert str(user_error(caught.value)).startswith(f"{tmp_path}/file/folder: Not a directory; a file stands where")


def test_faults_of_the_program_keep_their_traceback() -> None:
    assert user_error(ValueError("x")) is None
    assert user_error(ConnectionResetError(errno.ECONNRESET, "reset")) is None
    assert user_error(OSError("no number")) is None
    own = UserError("as it is")
    assert user_error(own) is own
