"""Read a DCP folder without trusting it.

DCP (torch.distributed.checkpoint) keeps its table of contents, `.metadata`, as a pickle, and plain `pickle.load` runs
whatever code a pickle asks for. Here only the table's own dataclasses, dtypes, shapes and paths may be named; anything
else is refused. Tensors themselves are read with `weights_only=True` by DCP. Values that are not tensors (which DCP
would unpickle freely) are never written by `store.py` and never read.
"""

from __future__ import annotations

import importlib
import pickle
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from megalith.errors import UserError

_TABLE_MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
_NAMED = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    ("pathlib", "WindowsPath"),
    ("pathlib._local", "PosixPath"),  # Python 3.13 on
}


class _TableUnpickler(pickle.Unpickler):
    """Resolves the few names that a table of contents is made of."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) in _NAMED:
            return super().find_class(module_name, global_name)
        if module_name == "torch" and isinstance(getattr(torch, global_name, None), torch.dtype):
            return getattr(torch, global_name)
        if module_name in _TABLE_MODULES:
            found = getattr(importlib.import_module(module_name), global_name, None)
            if isinstance(found, type) and found.__module__ == module_name and hasattr(found, "__match_args__"):
                return found
            if isinstance(found, type) and found.__name__ == "_MEM_FORMAT_ENCODING":
                return found
        raise UserError(
            f"checkpoint metadata asks for {module_name}.{global_name}, which no table of tensors needs; not loaded"
        )


class TableReader(FileSystemReader):
    """`FileSystemReader` whose metadata goes through the restricted unpickler."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The table of contents. Raises UserError where it names foreign code or is not a table."""
        path = self.fs.concat_path(self.path, ".metadata")
        with self.fs.create_stream(path, "rb") as stream:
            metadata = _TableUnpickler(stream).load()
        if not isinstance(metadata, Metadata):
            raise UserError(f"{path} holds a {type(metadata).__name__}, not a table of tensors")
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata
