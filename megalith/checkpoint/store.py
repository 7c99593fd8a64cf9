"""Save and load training state through torch.distributed.checkpoint (DCP), by all ranks together or by one process.

Saving is all or nothing: files are written and synced under a temporary name, the manifest with their sizes and digests
comes last, then the folder gets its name, then `latest` moves, then old checkpoints go. Loading reshards: a checkpoint
of any layout goes into any other, and into a plain single-process model.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from megalith import __version__
from megalith.checkpoint import atomic, folder
from megalith.checkpoint.folder import Manifest, StoredFile
from megalith.checkpoint.reader import TableReader
from megalith.checkpoint.state import MODEL, OPTIMIZER, model_state, optimizer_state, prepare_optimizer_state
from megalith.checkpoint.writer import PlainWriter, plain_failures
from megalith.errors import UserError


@dataclass(frozen=True)
class Position:
    """Where a run stands: `step` steps are done, `consumed_samples` sequences were read by all ranks together.

    sources: how far it is into each of its token files, as the loader describes it.
    """

    step: int
    consumed_samples: int
    sources: Mapping[str, Any] = field(default_factory=dict, compare=False)


def save(
    output: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    position: Position,
    recipe_tree: Mapping[str, Any],
    keep: int,
    tokenizer_digest: str | None = None,
) -> Path:
    """Write the checkpoint of `position.step`; every rank calls it. Returns the folder; `keep` newest ones stay.

    Raises OSError where the system refuses to write on any rank, as on a full disk.
    """
    temporary = folder.temporary_folder(output, position.step)
    if _rank() == 0:
        atomic.remove_folder(temporary)
        temporary.mkdir(parents=True)
    _barrier()
    state = {**model_state(model), **optimizer_state(model, optimizer)}
    writer = PlainWriter(temporary, sync_files=True)
    with _one_process_is_meant(), plain_failures():
        state_dict_saver.save(state, storage_writer=writer, no_dist=not dist.is_initialized())
    manifest = Manifest(
        position.step, position.consumed_samples, recipe_tree, tokenizer_digest, versions(), sources=position.sources
    )
    files = _written_files(temporary)
    if _rank() == 0:
        folder.write_manifest(temporary, replace(manifest, files=files))
        atomic.publish_folder(temporary, folder.step_folder(output, position.step))
        folder.point_latest(output, position.step)
        folder.retain(output, keep, position.step)
    _barrier()
    return folder.step_folder(output, position.step)


def load(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Manifest:
    """Load a checkpoint folder into a built model, and its fresh optimizer where one is given; every rank calls it.

    Raises UserError where parameters are missing or shaped otherwise, naming them.
    """
    manifest = folder.read_manifest(checkpoint)
    reader = TableReader(checkpoint)
    table = reader.read_metadata().state_dict_metadata
    state = model_state(model)
    if optimizer is not None:
        slots = [key for key in table if key.startswith(OPTIMIZER)]
        _refuse(checkpoint, [f"{key}: the model has no such parameter" for key in slots if not _owner_in(key, state)])
        state |= prepare_optimizer_state(model, optimizer, slots)
    _refuse(checkpoint, _mismatches(state, table))
    with _one_process_is_meant(), plain_failures():
        state_dict_loader.load(state, storage_reader=reader, no_dist=not dist.is_initialized())
    return manifest


def newest(output: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint of a run and the faults of newer ones; rank 0 looks, all ranks get its answer."""
    answer: list[Any] = [folder.newest_whole(output) if _rank() == 0 else None]
    if dist.is_initialized():
        dist.broadcast_object_list(answer, src=0)
    return answer[0]


def versions() -> dict[str, str]:
    """What wrote a checkpoint, for whoever has to read it years later."""
    return {"megalith": __version__, "torch": torch.__version__, "python": platform.python_version()}


def _mismatches(state: Mapping[str, Tensor], table: Mapping[str, Any]) -> list[str]:
    found = []
    for key, tensor in state.items():
        stored = table.get(key)
        if not isinstance(stored, TensorStorageMetadata):
            found.append(f"{key}: not in the checkpoint")
        elif stored.size != tensor.shape:
            found.append(f"{key}: {tuple(stored.size)} in the checkpoint, {tuple(tensor.shape)} in the model")
    extra = [key for key in table if key.startswith(MODEL) and key not in state]
    return found + [f"{key}: in the checkpoint, but the model has no such parameter" for key in extra]


def _owner_in(slot_key: str, state: Mapping[str, Tensor]) -> bool:
    return MODEL + slot_key.removeprefix(OPTIMIZER).rsplit(".", 1)[0] in state


def _refuse(checkpoint: Path, found: list[str]) -> None:
    if found:
        shown = "\n  ".join(found[:8] + ([f"and {len(found) - 8} more"] if len(found) > 8 else []))
        raise UserError(f"{checkpoint} does not fit the model; use the recipe it was trained with:\n  {shown}")


def _written_files(temporary: Path) -> dict[str, StoredFile]:
    """Size and digest of every file; each rank reads those that it wrote, so that the work is shared."""
    own = [path for path in sorted(temporary.iterdir()) if _writer_rank(path.name) == _rank()]
    described = {path.name: StoredFile(path.stat().st_size, atomic.sha256(path)) for path in own}
    if not dist.is_initialized():
        return described
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, described)
    return {name: stored for part in gathered for name, stored in part.items()}


def _writer_rank(file_name: str) -> int:
    """The rank in DCP's `__<rank>_<number>.distcp`; rank 0 wrote everything else."""
    return int(file_name.split("_")[2]) if file_name.startswith("__") else 0


@contextmanager
def _one_process_is_meant() -> Iterator[None]:
    """DCP warns that there is no process group even where it was told so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _barrier() -> None:
    if dist.is_initialized():
        dist.barrier()
