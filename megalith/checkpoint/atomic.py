"""Folders and files that a kill at any instant leaves either undone or done: temporary name, fsync, rename."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from megalith.files import atomic_writer, sync_folder


def write_text(path: Path, text: str) -> None:
    """Replace `path` by a file holding `text`; readers see the old or the new one, never a part."""
    with atomic_writer(path) as stream:
        stream.write(text.encode())


def copy_file(source: Path, target: Path) -> None:
    """Copy `source` over `target`, never seen half written; nothing happens where they are one file."""
    if target.exists() and source.samefile(target):
        return
    with open(source, "rb") as original, atomic_writer(target) as stream:
        shutil.copyfileobj(original, stream)


def publish_folder(temporary: Path, final: Path) -> None:
    """Give a finished folder its name; one that already has it is set aside first, then removed."""
    sync_folder(temporary)
    remove_folder(final)
    temporary.rename(final)
    sync_folder(final.parent)


def remove_folder(folder: Path) -> None:
    """Remove a folder that readers may look at: it loses its name before it loses its files."""
    if not folder.exists():
        return
    doomed = folder.with_name(f".{folder.name.lstrip('.')}.removing")
    shutil.rmtree(doomed, ignore_errors=True)
    folder.rename(doomed)
    shutil.rmtree(doomed)


def sha256(path: Path) -> str:
    """Digest of a file's bytes, in hexadecimal."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
