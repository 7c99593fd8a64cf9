"""How a run's checkpoints lie on disk, and which of them are whole; no torch here.

```
OUTPUT/checkpoints/latest                      the name of the newest one, for people and scripts
OUTPUT/checkpoints/step_00000100/manifest.json step, samples consumed, recipe, and size and sha256 of every other file
OUTPUT/checkpoints/step_00000100/.metadata     DCP: which tensor lies where
OUTPUT/checkpoints/step_00000100/__0_0.distcp  DCP: tensors that rank 0 wrote
```

A checkpoint is whole when its manifest reads and every file that it lists is there with its size and digest. Names that
begin with a dot are being written or removed and are never read.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from megalith.checkpoint import atomic
from megalith.errors import UserError

FORMAT = 1
MANIFEST = "manifest.json"
_STEP_NAME = re.compile(r"step_(\d+)")


@dataclass(frozen=True)
class StoredFile:
    """One file of a checkpoint as it was written."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself. `recipe`: the resolved recipe as a plain tree; `versions`: what wrote it.

    sources: how far the run was into each of its token files.
    """

    step: int
    consumed_samples: int
    recipe: Mapping[str, Any]
    tokenizer_digest: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, StoredFile] = field(default_factory=dict)
    sources: Mapping[str, Any] = field(default_factory=dict)
    format: int = FORMAT


def checkpoints_folder(output: Path) -> Path:
    return output / "checkpoints"


def step_folder(output: Path, step: int) -> Path:
    """Where the checkpoint of `step` lies, written or not."""
    return checkpoints_folder(output) / f"step_{step:08d}"


def temporary_folder(output: Path, step: int) -> Path:
    """Where the checkpoint of `step` is written before it is whole."""
    return checkpoints_folder(output) / f".step_{step:08d}.writing"


def steps(output: Path) -> list[int]:
    """Steps that have a folder, whole or not, in the order of their numbers."""
    folder = checkpoints_folder(output)
    names = (entry.name for entry in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(match[1]) for name in names if (match := _STEP_NAME.fullmatch(name)))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    atomic.write_text(folder / MANIFEST, json.dumps(asdict(manifest), indent=1))


def read_manifest(folder: Path) -> Manifest:
    """Raises UserError where there is none, or one that another version wrote and this one cannot read."""
    path = folder / MANIFEST
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        files = {name: StoredFile(**entry) for name, entry in tree.pop("files").items()}
        manifest = Manifest(files=files, **tree)
        if not isinstance(manifest.step, int) or not isinstance(manifest.recipe, dict):
            raise ValueError("no step or no recipe in it")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{path} does not read as a checkpoint's manifest ({error}); name a whole checkpoint"
        ) from error
    if manifest.format != FORMAT:
        raise UserError(f"{path} has format {manifest.format}; this version reads format {FORMAT}")
    return manifest


def faults(folder: Path) -> list[str]:
    """What keeps the checkpoint from being whole; empty where it is. Every byte is read."""
    try:
        manifest = read_manifest(folder)
    except UserError as error:
        return [str(error)]
    found = []
    for name, stored in manifest.files.items():
        path = folder / name
        if not path.is_file():
            found.append(f"{path} is missing")
        elif path.stat().st_size != stored.bytes:
            found.append(f"{path} holds {path.stat().st_size} bytes; {stored.bytes} were written")
        elif atomic.sha256(path) != stored.sha256:
            found.append(f"{path} does not have the bytes that were written (sha256 differs)")
    return found


def newest_whole(output: Path) -> tuple[Path | None, list[str]]:
    """The whole checkpoint of the highest step, or None, and what was wrong with newer ones passed over."""
    passed_over: list[str] = []
    for step in reversed(steps(output)):
        folder = step_folder(output, step)
        found = faults(folder)
        if not found:
            return folder, passed_over
        passed_over.extend(found)
    return None, passed_over


def find_checkpoint(path: Path) -> Path:
    """The checkpoint that `path` means: itself, or the newest whole one of the run folder that it is.

    Raises UserError where there is none: a damaged weight would speak as if nothing were wrong, so digests are checked.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist; name a run's output folder or a step_* folder in it")
    if (path / MANIFEST).is_file():
        if found := faults(path):
            raise UserError("\n".join(found))
        return path
    folder, passed_over = newest_whole(path)
    if folder is None:
        reason = "; ".join(passed_over) or f"it has neither {MANIFEST} nor checkpoints/step_*"
        raise UserError(
            f"{path} holds no whole checkpoint: {reason}. Name a run's output folder or a step_* folder in it"
        )
    return folder


def point_latest(output: Path, step: int) -> None:
    atomic.write_text(checkpoints_folder(output) / "latest", step_folder(output, step).name + "\n")


def retain(output: Path, keep: int, step: int) -> list[int]:
    """Remove all but the `keep` newest checkpoints up to `step`, and what a killed run left; returns the steps removed.

    Newer ones than `step` go too: the run continued from an older one, so they were not whole.
    """
    present = steps(output)
    kept = [s for s in present if s <= step][-max(1, keep) :]
    removed = [s for s in present if s not in kept]
    for old in removed:
        atomic.remove_folder(step_folder(output, old))
    for leftover in checkpoints_folder(output).glob(".step_*"):
        shutil.rmtree(leftover, ignore_errors=True)
    return removed
