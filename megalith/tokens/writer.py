"""Write a token file document by document: `IndexedWriter` makes a `.bin/.idx` pair, whole or not at all.

The bytes are those of `index_layout`. 12 bytes a document are kept in memory.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from megalith.errors import UserError
from megalith.files import publish, sync_folder, temporary_name
from megalith.tokens.index_layout import CODES, bin_path, idx_path, write_index
from megalith.tokens.indexed import IndexedTokens

MAX_SEQUENCE_TOKENS = 2**31 - 1  # lengths are int32 in the format
_CHUNK = 1 << 20  # entries copied at once


class IndexedWriter:
    """Writes `PREFIX.bin` and `PREFIX.idx`; used as a context manager.

    Both files appear when the block ends, the index last; when the block raises neither does, and an older pair stays
    as it was. `part_tokens`: ids of the document that is not ended yet.
    """

    def __init__(self, prefix: str | Path, dtype: np.dtype | type) -> None:
        """`dtype`: see `dtype_for`. Raises UserError for one that the format does not know."""
        self.dtype = np.dtype(dtype)
        if self.dtype not in CODES:
            raise UserError(f"dtype {self.dtype} cannot be stored; choose one of {', '.join(d.name for d in CODES)}")
        if not Path(prefix).name:
            raise UserError(f"output prefix {str(prefix)!r} names no file; choose for example data/text")
        self.num_tokens = self.part_tokens = 0
        self._sha256 = hashlib.sha256()
        self._limit = np.iinfo(self.dtype)
        self._lengths = array("i")
        self._document_ends = array("q", [0])
        self._bin_path, self._idx_path = bin_path(prefix), idx_path(prefix)
        self._bin_path.parent.mkdir(parents=True, exist_ok=True)
        self._bin = open(temporary_name(self._bin_path), "wb")  # noqa: SIM115 - closed by __exit__

    @property
    def num_documents(self) -> int:
        """Documents appended, empty ones included."""
        return len(self._document_ends) - 1

    @property
    def bin_sha256(self) -> str:
        """Digest of the bytes written to the `.bin` so far, hexadecimal."""
        return self._sha256.hexdigest()

    def append(self, ids: Sequence[int] | np.ndarray) -> None:
        """Add one document of ids (integers, any width). An empty one becomes a document without a sequence.

        Raises UserError where an id is negative or does not fit the dtype, TypeError for what is no integer.
        """
        self.append_part(ids)
        self.end_document()

    def append_part(self, ids: Sequence[int] | np.ndarray) -> None:
        """Add ids to the document that `end_document` will end; raises as `append`."""
        ids = np.asarray(ids)
        if ids.size:
            self._check(ids)
            self._write(np.ascontiguousarray(ids, self.dtype))
            self.part_tokens += ids.size

    def end_document(self) -> None:
        """End the document of the parts since the last end, empty where there were none."""
        if self.part_tokens:
            self._lengths.append(self.part_tokens)
            self.part_tokens = 0
        self._document_ends.append(len(self._lengths))

    def extend(self, tokens: IndexedTokens) -> None:
        """Add all documents of another file, in bounded memory. Raises UserError where its dtype is another."""
        if tokens.dtype != self.dtype:
            raise UserError(
                f"{tokens.prefix} holds {tokens.dtype.name}, not {self.dtype.name}: token files of different widths "
                "cannot be laid together; tokenize one of them again with the tokenizer of the other"
            )
        start = len(self._lengths)
        for first in range(0, tokens.num_tokens, _CHUNK):
            self._write(tokens.slice(first, first + _CHUNK))
        for first in range(0, tokens.num_sequences, _CHUNK):
            self._lengths.frombytes(tokens.lengths[first : first + _CHUNK].tobytes())
        for first in range(1, len(tokens.document_ends), _CHUNK):
            self._document_ends.frombytes((tokens.document_ends[first : first + _CHUNK] + start).tobytes())

    def _write(self, ids: np.ndarray) -> None:
        self._bin.write(ids.data)
        self._sha256.update(ids.data)
        self.num_tokens += ids.size

    def _check(self, ids: np.ndarray) -> None:
        if ids.dtype.kind not in "iu" or ids.ndim != 1:
            raise TypeError(f"a document is a one-dimensional array of integers, not {ids.dtype} of shape {ids.shape}")
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high > self._limit.max:
            raise UserError(
                f"token id {low if low < 0 else high} does not fit {self.dtype.name} (0 to {self._limit.max}); "
                "choose the dtype by the vocabulary with added tokens"
            )
        if self.part_tokens + ids.size > MAX_SEQUENCE_TOKENS:
            count = self.part_tokens + ids.size
            raise UserError(f"a document of {count} tokens is too long for the format's int32 lengths; split it")

    def __enter__(self) -> IndexedWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finalise()
        self._bin.close()
        temporary_name(self._bin_path).unlink(missing_ok=True)
        temporary_name(self._idx_path).unlink(missing_ok=True)

    def _finalise(self) -> None:
        """Both files are whole on disk first; the old index goes before the new .bin comes, so no wrong pair shows."""
        with open(temporary_name(self._idx_path), "wb") as index:
            lengths = np.frombuffer(self._lengths, np.int32)
            write_index(index, self.dtype, lengths, np.frombuffer(self._document_ends, np.int64))
            self._idx_path.unlink(missing_ok=True)
            sync_folder(self._idx_path.parent)
            publish(self._bin, self._bin_path)
            publish(index, self._idx_path)
