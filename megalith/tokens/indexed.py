"""Read a token file: `IndexedTokens` maps a `.bin/.idx` pair, checked, and leaves the ids on disk until asked for.

The bytes are those of `index_layout`; `writer.IndexedWriter` makes such a pair.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path

import numpy as np

from megalith.errors import UserError
from megalith.tokens.index_layout import DTYPES, HEADER, MAGIC, VERSION, bin_path, idx_path


class IndexedTokens:
    """Read-only view of a token file; the ids stay on disk until they are asked for.

    lengths: tokens of each sequence, int32 (S,).  pointers: byte offsets, int64 (S,).  document_ends: int64 (D,).

    Opening checks all that costs no pass over the index: magic, version, dtype, both file sizes, first and last entry.
    Raises UserError that names the file and what is wrong with it.
    """

    def __init__(self, prefix: str | Path) -> None:
        self.prefix = str(prefix)
        self._idx, self._bin = idx_path(prefix), bin_path(prefix)
        self.dtype, self.num_sequences, document_entries = self._read_header()
        self._check_index_size(document_entries)
        after_lengths = HEADER.size + 4 * self.num_sequences
        self.lengths = self._table("<i4", HEADER.size, self.num_sequences)
        self.pointers = self._table("<i8", after_lengths, self.num_sequences)
        self.document_ends = self._table("<i8", after_lengths + 8 * self.num_sequences, document_entries)
        self._check_ends()
        size = self._bin.stat().st_size // self.dtype.itemsize
        self._tokens = np.asarray(np.memmap(self._bin, self.dtype, mode="r")) if size else np.empty(0, self.dtype)

    @property
    def num_documents(self) -> int:
        """Documents, empty ones included."""
        return len(self.document_ends) - 1

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return len(self._tokens)

    @cached_property
    def digest(self) -> str:
        """Short name of the content, the same for a copy elsewhere: of both sizes and of 65,536 pointers in between.

        A pointer is the sum of all lengths before it, so lengths changed anywhere show in the next one.
        """
        step = max(1, self.num_sequences >> 16)
        content = hashlib.sha256(f"{self.dtype.name} {self.num_sequences} {len(self.document_ends)} ".encode())
        content.update(f"{self.num_tokens} {self.first(64).tolist()} {self._tokens[-64:].tolist()}".encode())
        content.update(np.ascontiguousarray(self.pointers[::step]).data)
        return content.hexdigest()[:32]

    @property
    def stamp(self) -> dict[str, str | int]:
        """What tells these very files from any other or later ones: digest, and the times both were written."""
        times = {f"{path.suffix[1:]}_mtime_ns": path.stat().st_mtime_ns for path in (self._bin, self._idx)}
        return {"digest": self.digest, **times}

    def __len__(self) -> int:
        return self.num_sequences

    def __getitem__(self, sequence: int) -> np.ndarray:
        """Ids of one sequence, in the file's dtype."""
        return self.read(sequence, 0, int(self.lengths[sequence]))

    def read(self, sequence: int, offset: int, length: int) -> np.ndarray:
        """`length` ids of a sequence from `offset` (tokens) on, in the file's dtype, without a copy.

        Raises UserError where the index points outside the .bin, IndexError where the range leaves the sequence.
        """
        available = int(self.lengths[sequence])
        if not 0 <= offset <= offset + length <= available:
            raise IndexError(f"tokens {offset}..{offset + length} of sequence {sequence}, which has {available}")
        start, remainder = divmod(int(self.pointers[sequence]), self.dtype.itemsize)
        if remainder or start < 0 or start + available > len(self._tokens):
            raise self._fault(
                self._idx, f"sequence {sequence} points to byte {self.pointers[sequence]}, outside the .bin"
            )
        return self._tokens[start + offset : start + offset + length]

    def slice(self, start: int, stop: int) -> np.ndarray:
        """Ids start .. stop - 1 of the whole file whatever sequences they belong to, fewer where it has fewer."""
        return self._tokens[start:stop]

    def first(self, count: int) -> np.ndarray:
        """The first `count` ids of the file, fewer where it has fewer."""
        return self._tokens[:count]

    def verify(self) -> None:
        """Check each entry of the index (one pass over it). Raises UserError at the first table that is wrong."""
        if self.num_sequences and int(self.lengths.min()) < 0:
            raise self._fault(self._idx, f"sequence {int(self.lengths.argmin())} has a negative length")
        ends = np.cumsum(self.lengths, dtype=np.int64) * self.dtype.itemsize
        wrong = np.flatnonzero(self.pointers[1:] != ends[:-1])
        if wrong.size:
            raise self._fault(self._idx, f"sequence {int(wrong[0]) + 1} does not begin where the one before it ends")
        falling = np.flatnonzero(np.diff(self.document_ends) < 0)
        if falling.size:
            raise self._fault(self._idx, f"document {int(falling[0])} ends before it begins")

    def _read_header(self) -> tuple[np.dtype, int, int]:
        try:
            with open(self._idx, "rb") as file:
                raw = file.read(HEADER.size)
        except OSError as error:
            raise self._fault(self._idx, f"{error.strerror}; a prefix is the path without .bin or .idx") from error
        if len(raw) < HEADER.size:
            raise self._fault(self._idx, f"{len(raw)} bytes are less than the header of {HEADER.size}: truncated")
        magic, version, code, sequences, document_entries = HEADER.unpack(raw)
        if magic != MAGIC:
            raise self._fault(self._idx, f"begins with {magic!r}, not {MAGIC!r}: no Megatron index")
        if version != VERSION:
            raise self._fault(self._idx, f"version {version}; only version {VERSION} is known")
        if code not in DTYPES:
            known = ", ".join(f"{c} {d.name}" for c, d in DTYPES.items())
            raise self._fault(self._idx, f"dtype code {code} is no integer type; token files use {known}")
        return DTYPES[code], sequences, document_entries

    def _check_index_size(self, document_entries: int) -> None:
        plain = HEADER.size + 12 * self.num_sequences + 8 * document_entries
        size = self._idx.stat().st_size
        if size not in (plain, plain + self.num_sequences):
            raise self._fault(
                self._idx,
                f"{size} bytes, but {self.num_sequences} sequences and {document_entries} document ends take {plain}: "
                "truncated or damaged; copy it again or tokenize again",
            )
        if document_entries == 0:
            raise self._fault(self._idx, "no document entries; even an index without documents has one")

    def _table(self, dtype: str, offset: int, count: int) -> np.ndarray:
        """A table of the index, still on disk; a plain array, since a memmap's slices cost ten times as much."""
        if count == 0:
            return np.empty(0, dtype)
        return np.asarray(np.memmap(self._idx, dtype, mode="r", offset=offset, shape=(count,)))

    def _check_ends(self) -> None:
        first, last = int(self.document_ends[0]), int(self.document_ends[-1])
        if first != 0 or last != self.num_sequences:
            raise self._fault(
                self._idx, f"documents span sequences {first} to {last}, not 0 to {self.num_sequences}: damaged"
            )
        try:
            size = self._bin.stat().st_size
        except OSError as error:
            raise self._fault(self._bin, f"{error.strerror}; .bin and .idx belong together") from error
        described = int(self.pointers[-1]) + int(self.lengths[-1]) * self.dtype.itemsize if self.num_sequences else 0
        if described != size or (self.num_sequences and int(self.pointers[0]) != 0):
            raise self._fault(
                self._bin,
                f"{size} bytes, but its index describes {described}: truncated, or .bin and .idx are of different runs",
            )

    @staticmethod
    def _fault(path: Path, what: str) -> UserError:
        return UserError(f"{path}: {what}")
