"""Errors that the person at the keyboard can put right, kept apart from faults of the program."""

from __future__ import annotations

import errno
from types import MappingProxyType

_WAYS_OUT = MappingProxyType(
    {
        errno.ENOSPC: "free some space or choose a place on another disk",
        errno.EDQUOT: "free some space or choose a place with another quota",
        errno.EFBIG: "choose a place that holds larger files",
        errno.EACCES: "choose a place that you may read and write",
        errno.EPERM: "choose a place that you may write to",
        errno.EROFS: "choose a place that can be written to",
        errno.ENOENT: "check its path",
        errno.ENOTDIR: "a file stands where a folder is needed; choose another path",
        errno.EEXIST: "choose another path",
        errno.EISDIR: "a folder stands where a file is needed; choose another path",
        errno.ENAMETOOLONG: "choose a shorter path",
    }
)


class UserError(Exception):
    """Shown alone, without a traceback, and ends the command with exit code 2."""


def user_error(error: BaseException) -> UserError | None:
    """`error` as something that the user can put right: itself, or a disk that is full, a path that cannot be written.

    None for a fault of the program, whose traceback is wanted.
    """
    if isinstance(error, UserError):
        return error
    if not isinstance(error, OSError) or error.errno is None or error.errno not in _WAYS_OUT:
        return None
    place = f"{error.filename}: " if error.filename is not None else ""
    return UserError(f"{place}{error.strerror}; {_WAYS_OUT[error.errno]}")
