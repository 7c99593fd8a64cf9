"""Token files: `IndexedWriter` makes a `.bin/.idx` pair document by document, `IndexedTokens` reads one from disk.

The bytes are those of `index_layout`. The writer keeps 12 bytes per document in memory and leaves no half-written pair.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType

import numpy as np

from megalith.errors import UserError
from megalith.files import publish, sync_folder, temporary_name
from megalith.tokens.index_layout import CODES, DTYPES, HEADER, MAGIC, VERSION, bin_path, idx_path, write_index

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
