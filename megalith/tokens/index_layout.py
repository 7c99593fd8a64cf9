"""The bytes of a token file as Megatron lays them out: `PREFIX.bin` holds ids back to back, `PREFIX.idx` says where.

Layout of the index, little-endian and without padding (NVIDIA/Megatron-LM, core/datasets/indexed_dataset.py):

    offset   type      meaning                        S sequences, D - 1 documents
    0        9 bytes   b"MMIDIDX\\0\\0"
    9        uint64    version, 1
    17       uint8     dtype code
    18       uint64    S
    26       uint64    D
    34       int32[S]  length of each sequence, in tokens
    +4S      int64[S]  offset of each sequence in the .bin, in bytes
    +8S      int64[D]  0, then the sequence at which each document ends; the last is S
    +8D      int8[S]   modes, only in multimodal files; recognised by the file's size and not used

A GPT document is one sequence, or none where it is empty.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from megalith.errors import UserError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {
    1: np.dtype("u1"),
    2: np.dtype("i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    8: np.dtype("<u2"),
}
CODES = {dtype: code for code, dtype in DTYPES.items()}

_CHUNK = 1 << 20  # index entries turned into bytes at once


def bin_path(prefix: str | Path) -> Path:
    """`PREFIX.bin`; a prefix may hold dots itself."""
    return Path(f"{prefix}.bin")


def idx_path(prefix: str | Path) -> Path:
    """`PREFIX.idx`."""
    return Path(f"{prefix}.idx")


def dtype_for(vocab_size: int) -> np.dtype:
    """The narrowest of uint16 and int32 that holds ids below `vocab_size`.

    uint16 up to and including 65,536 tokens. Megatron's writer stops at 65,500 for no need and doubles such files;
    all readers trust the code in the header, so both choices are read everywhere.
    """
    return np.dtype("<u2") if vocab_size <= 65_536 else np.dtype("<i4")


def write_index(file: BinaryIO, dtype: np.dtype, lengths: np.ndarray, document_ends: np.ndarray) -> None:
    """Write an index to `file`. lengths int32 (S,) in tokens; document_ends int64 (D,), beginning with 0."""
    file.write(HEADER.pack(MAGIC, VERSION, CODES[np.dtype(dtype)], len(lengths), len(document_ends)))
    _write_chunked(file, lengths, "<i4")
    start = 0
    for chunk in _chunks(lengths):
        pointers, start = byte_pointers(chunk, dtype.itemsize, start)
        file.write(pointers.astype("<i8", copy=False).data)
    _write_chunked(file, document_ends, "<i8")


def byte_pointers(lengths: np.ndarray, itemsize: int, start: int = 0) -> tuple[np.ndarray, int]:
    """Byte offsets, int64, of sequences stored back to back from `start` on, and the offset behind the last.

    Sums are taken in 64 bits whatever the width of `lengths`. Raises UserError where they leave those.

    >>> byte_pointers(np.full(3, 2**30, np.int32), 2)
    (array([         0, 2147483648, 4294967296]), 6442450944)
    """
    tokens = np.cumsum(lengths, dtype=np.int64)
    end = int(tokens[-1]) * itemsize + start
    if end >= 2**63:
        raise UserError(f"{end} bytes of tokens are more than the format's 64-bit offsets can say; write several files")
    return np.concatenate(([start], tokens[:-1] * itemsize + start)), end


def _chunks(values: np.ndarray) -> list[np.ndarray]:
    return [values[i : i + _CHUNK] for i in range(0, len(values), _CHUNK)]


def _write_chunked(file: BinaryIO, values: np.ndarray, dtype: str) -> None:
    for chunk in _chunks(values):
        file.write(np.ascontiguousarray(chunk, dtype).data)
