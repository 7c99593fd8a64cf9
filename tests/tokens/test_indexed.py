"""`.bin/.idx`: bytes as Megatron writes them, 64 bits where it counts, and no damaged file read as garbage."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from megalith.errors import UserError
from megalith.tokens.index_layout import byte_pointers, dtype_for, write_index
from megalith.tokens.indexed import IndexedTokens
from megalith.tokens.writer import IndexedWriter

GOLDEN = Path(__file__).parents[1] / "golden"
DOCUMENTS = [[11, 12, 13, 14, 0], [21, 22, 0], [31, 32, 33, 34, 35, 36, 0]]


def write(prefix: Path, documents: list[list[int]], dtype: type = np.uint16) -> Path:
    with IndexedWriter(prefix, dtype) as writer:
        for document in documents:
            writer.append(document)
    return prefix


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    for ending in ("bin", "idx"):
        shutil.copy(GOLDEN / f"tiny.{ending}", tmp_path / f"tiny.{ending}")
    return tmp_path / "tiny"


def test_writes_the_golden_bytes(tmp_path: Path) -> None:
    prefix = write(tmp_path / "ours", DOCUMENTS)
    expected = json.loads((GOLDEN / "megatron_order.json").read_text())["tiny_idx_hex"]
    assert Path(f"{prefix}.idx").read_bytes().hex() == expected
    assert Path(f"{prefix}.bin").read_bytes() == (GOLDEN / "tiny.bin").read_bytes()


def test_reads_the_golden_file(tiny: Path) -> None:
    tokens = IndexedTokens(tiny)
    assert [tokens[i].tolist() for i in range(len(tokens))] == DOCUMENTS
    assert (tokens.num_documents, tokens.num_sequences, tokens.num_tokens) == (3, 3, 15)
    assert tokens.dtype == np.uint16
    assert tokens.read(2, 1, 3).tolist() == [32, 33, 34]
    assert tokens.first(6).tolist() == [11, 12, 13, 14, 0, 21]
    tokens.verify()


def test_reading_outside_a_sequence_is_an_error(tiny: Path) -> None:
    tokens = IndexedTokens(tiny)
    for offset, length in ((0, 6), (5, 1), (-1, 2), (2, -1)):
        with pytest.raises(IndexError, match="which has 5"):
            tokens.read(0, offset, length)


def test_empty_documents_keep_their_place_without_a_sequence(tmp_path: Path) -> None:
    tokens = IndexedTokens(write(tmp_path / "x", [[], [1, 2], [], [], [3], []]))
    assert tokens.document_ends.tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert tokens.num_documents == 6
    assert [tokens[i].tolist() for i in range(len(tokens))] == [[1, 2], [3]]


@pytest.mark.parametrize("documents", [[], [[]], [[], []]])
def test_a_file_without_tokens(tmp_path: Path, documents: list[list[int]]) -> None:
    tokens = IndexedTokens(write(tmp_path / "x", documents))
    tokens.verify()
    assert (len(tokens), tokens.num_tokens, tokens.num_documents) == (0, 0, len(documents))


def test_zero_length_sequences_of_other_writers_are_read(tmp_path: Path) -> None:
    np.arange(5, dtype="<u2").tofile(tmp_path / "x.bin")
    with open(tmp_path / "x.idx", "wb") as file:
        write_index(file, np.dtype("<u2"), np.array([0, 3, 0, 2, 0], np.int32), np.arange(6))
    tokens = IndexedTokens(tmp_path / "x")
    tokens.verify()
    assert [tokens[i].tolist() for i in range(5)] == [[], [0, 1, 2], [], [3, 4], []]


def test_modes_of_multimodal_files_are_tolerated(tiny: Path) -> None:
    with open(f"{tiny}.idx", "ab") as file:
        file.write(bytes(3))
    assert IndexedTokens(tiny)[1].tolist() == DOCUMENTS[1]


@pytest.mark.parametrize(
    ("vocab_size", "itemsize"),
    [(257, 2), (65_499, 2), (65_500, 2), (65_535, 2), (65_536, 2), (65_537, 4), (250_680, 4)],
)
def test_dtype_holds_the_last_id_and_no_more_than_needed(tmp_path: Path, vocab_size: int, itemsize: int) -> None:
    dtype = dtype_for(vocab_size)
    assert dtype.itemsize == itemsize
    with IndexedWriter(tmp_path / "x", dtype) as writer:
        writer.append([0, vocab_size - 1])
    assert IndexedTokens(tmp_path / "x")[0].tolist() == [0, vocab_size - 1]


@pytest.mark.parametrize(
    ("dtype", "ids", "message"),
    [
        (np.uint16, [1, 70_000], r"token id 70000 does not fit uint16 \(0 to 65535\)"),
        (np.uint16, np.array([65_536]), "65536"),
        (np.int32, [2**31], "2147483648"),
        (np.uint16, [3, -1], "token id -1 "),
        (np.uint16, np.array([2**63], np.uint64), "9223372036854775808"),
    ],
)
def test_ids_that_do_not_fit_are_refused(tmp_path: Path, dtype: type, ids: list[int], message: str) -> None:
    with pytest.raises(UserError, match=message), IndexedWriter(tmp_path / "x", dtype) as writer:
        writer.append(ids)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ids", [[1.0, 2.0], np.zeros((2, 2), np.int64), [True], ["a"], [2**70]])
def test_what_is_no_row_of_integers_is_refused(tmp_path: Path, ids: list) -> None:
    with (
        pytest.raises(TypeError, match="one-dimensional array of integers"),
        IndexedWriter(tmp_path / "x", np.int32) as w,
    ):
        w.append(ids)


def test_floats_cannot_be_stored(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="float32 cannot be stored"):
        IndexedWriter(tmp_path / "x", np.float32)


def test_a_writer_that_fails_leaves_the_older_pair(tmp_path: Path) -> None:
    write(tmp_path / "x", DOCUMENTS)
    with pytest.raises(RuntimeError), IndexedWriter(tmp_path / "x", np.uint16) as writer:
        writer.append([1])
        raise RuntimeError("stop")
    assert IndexedTokens(tmp_path / "x").num_tokens == 15
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.bin", "x.idx"]


def test_a_killed_writer_leaves_the_older_pair(tmp_path: Path) -> None:
    write(tmp_path / "x", DOCUMENTS)
    code = (
        "import os, sys; from megalith.tokens.writer import IndexedWriter\n"
        "writer = IndexedWriter(sys.argv[1], 'uint16'); writer.append(range(10**6 // 20)); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "x")], timeout=60).returncode == -9
    assert IndexedTokens(tmp_path / "x")[0].tolist() == DOCUMENTS[0]


def test_a_pair_is_replaced_whole(tmp_path: Path) -> None:
    write(tmp_path / "x", DOCUMENTS)
    write(tmp_path / "x", [[1, 2]], np.int32)
    assert IndexedTokens(tmp_path / "x")[0].tolist() == [1, 2]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.bin", "x.idx"]


def test_pointers_are_summed_in_64_bits() -> None:
    pointers, end = byte_pointers(np.full(3, 2**30, np.int32), 2)
    assert pointers.tolist() == [0, 2**31, 2**32]
    assert end == 3 * 2**31
    lengths = np.full(5, 2**31 - 1, np.int32)
    pointers, end = byte_pointers(lengths, 8, start=2**40)
    assert pointers.tolist() == [2**40 + 8 * i * (2**31 - 1) for i in range(5)]


def test_index_of_a_corpus_beyond_32_bits(tmp_path: Path) -> None:
    """Three sequences of 2^30 tokens in a sparse .bin: what is read at the far end is what was put there."""
    with open(tmp_path / "x.idx", "wb") as file:
        write_index(file, np.dtype("<u2"), np.full(3, 2**30, np.int32), np.arange(4))
    with open(tmp_path / "x.bin", "wb") as file:
        file.truncate(3 * 2**31)
        file.seek(3 * 2**31 - 4)
        file.write(np.array([7, 9], "<u2").tobytes())
    tokens = IndexedTokens(tmp_path / "x")
    tokens.verify()
    assert tokens.num_tokens == 3 * 2**30
    assert tokens.read(2, 2**30 - 2, 2).tolist() == [7, 9]


def test_the_writer_keeps_few_bytes_per_document(tmp_path: Path) -> None:
    """Documents of one token, and the index that is written of them: peak memory stays under 40 bytes a document."""
    one, count = np.array([5], np.uint16), 200_000
    tracemalloc.start()
    try:
        with IndexedWriter(tmp_path / "x", np.uint16) as writer:
            for _ in range(count):
                writer.append(one)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 12 * count < peak < 40 * count
    assert IndexedTokens(tmp_path / "x").num_tokens == count


@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize("byte", range(34))
def test_each_flipped_bit_of_the_header_is_refused(tiny: Path, byte: int, bit: int) -> None:
    raw = bytearray(Path(f"{tiny}.idx").read_bytes())
    raw[byte] ^= 1 << bit
    Path(f"{tiny}.idx").write_bytes(raw)
    with pytest.raises(UserError, match=r"tiny\.(idx|bin): "):
        IndexedTokens(tiny)


@pytest.mark.parametrize("byte", range(34, 102))
def test_each_flipped_byte_of_the_tables_is_found(tiny: Path, byte: int) -> None:
    raw = bytearray(Path(f"{tiny}.idx").read_bytes())
    raw[byte] ^= 0xFF
    Path(f"{tiny}.idx").write_bytes(raw)
    with pytest.raises(UserError, match=r"tiny\.(idx|bin): "):
        IndexedTokens(tiny).verify()


@pytest.mark.parametrize("size", [0, 1, 8, 33, 34, 35, 46, 70, 101, 103, 104, 106, 200])
def test_an_index_of_a_wrong_size_is_refused(tiny: Path, size: int) -> None:
    raw = Path(f"{tiny}.idx").read_bytes()
    Path(f"{tiny}.idx").write_bytes(raw[:size].ljust(size, b"\0"))
    with pytest.raises(UserError, match=r"tiny\.idx: .*(truncated|damaged)"):
        IndexedTokens(tiny)


@pytest.mark.parametrize("size", [0, 1, 28, 29, 31, 32, 60])
def test_a_bin_of_a_wrong_size_is_refused(tiny: Path, size: int) -> None:
    raw = Path(f"{tiny}.bin").read_bytes()
    Path(f"{tiny}.bin").write_bytes(raw[:size].ljust(size, b"\0"))
    with pytest.raises(UserError, match=rf"tiny\.bin: {size} bytes, but its index describes 30"):
        IndexedTokens(tiny)


def remove_bin(prefix: Path) -> None:
    Path(f"{prefix}.bin").unlink()


def remove_idx(prefix: Path) -> None:
    Path(f"{prefix}.idx").unlink()


@pytest.mark.parametrize(("damage", "named"), [(remove_bin, "bin"), (remove_idx, "idx")])
def test_a_missing_half_is_named(tiny: Path, damage: Callable[[Path], None], named: str) -> None:
    damage(tiny)
    with pytest.raises(UserError, match=rf"tiny\.{named}: No such file"):
        IndexedTokens(tiny)


@pytest.mark.parametrize("code", [6, 7])
def test_floating_dtypes_are_refused_by_name(tiny: Path, code: int) -> None:
    raw = bytearray(Path(f"{tiny}.idx").read_bytes())
    raw[17] = code
    Path(f"{tiny}.idx").write_bytes(raw)
    with pytest.raises(UserError, match=f"dtype code {code} is no integer type"):
        IndexedTokens(tiny)


def test_a_pointer_outside_the_bin_is_refused_when_read(tiny: Path) -> None:
    raw = bytearray(Path(f"{tiny}.idx").read_bytes())
    raw[54:62] = np.array([28], "<i8").tobytes()  # of the second sequence, of three tokens
    Path(f"{tiny}.idx").write_bytes(raw)
    with pytest.raises(UserError, match=r"tiny\.idx: sequence 1 points to byte 28, outside"):
        IndexedTokens(tiny)[1]


def test_a_copy_elsewhere_has_the_same_digest_and_other_content_another(tmp_path: Path) -> None:
    write(tmp_path / "x", DOCUMENTS)
    for ending in ("bin", "idx"):
        shutil.copy(tmp_path / f"x.{ending}", tmp_path / f"copy.{ending}")
    write(tmp_path / "cut", [DOCUMENTS[0], DOCUMENTS[2], DOCUMENTS[1]])
    write(tmp_path / "wide", DOCUMENTS, np.int32)
    write(tmp_path / "other", [[*DOCUMENTS[0][:-1], 9], *DOCUMENTS[1:]])
    write(tmp_path / "empty", [])
    digests = [IndexedTokens(tmp_path / name).digest for name in ("x", "copy", "cut", "wide", "other", "empty")]
    assert digests[0] == digests[1] and len(set(digests)) == 5


def test_a_prefix_without_a_name_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="names no file"):
        write(Path(""), DOCUMENTS)
    assert not list(tmp_path.iterdir())
