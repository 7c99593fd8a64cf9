"""Merging: the documents of all files in their order, offsets of 64 bits, and nothing replaced or mixed up."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from megalith.errors import UserError
from megalith.tokens.bpe import train_bpe
from megalith.tokens.corpus import tokenize_files
from megalith.tokens.documents import DocumentReader
from megalith.tokens.index_layout import byte_pointers
from megalith.tokens.indexed import IndexedTokens
from megalith.tokens.manifest import check_tokens, read_manifest
from megalith.tokens.merge import merge_files
from megalith.tokens.tokenizer import Tokenizer
from megalith.tokens.writer import IndexedWriter

PARTS = [[[1, 2, 3], [], [4]], [], [[], [5, 6], [7] * 5, []]]


def write(folder: Path, parts: list[list[list[int]]], dtype: type = np.uint16) -> list[Path]:
    prefixes = [folder / f"part{i}" for i in range(len(parts))]
    for prefix, documents in zip(prefixes, parts, strict=True):
        with IndexedWriter(prefix, dtype) as writer:
            for document in documents:
                writer.append(document)
    return prefixes


def documents_of(tokens: IndexedTokens) -> list[list[int]]:
    ends = tokens.document_ends.tolist()
    return [[i for s in range(a, b) for i in tokens[s].tolist()] for a, b in pairwise(ends)]


@pytest.mark.parametrize("parts", [PARTS, PARTS[:1], [[]], [[], PARTS[0]], [[[]], [[]]]])
def test_documents_and_boundaries_are_those_of_all_parts(tmp_path: Path, parts: list) -> None:
    merged = merge_files(write(tmp_path, parts), tmp_path / "all")
    merged.verify()
    assert documents_of(merged) == [document for documents in parts for document in documents]
    together = write(tmp_path / "together", [[document for documents in parts for document in documents]])[0]
    for ending in ("bin", "idx"):
        assert Path(f"{together}.{ending}").read_bytes() == (tmp_path / f"all.{ending}").read_bytes()


def test_a_merged_manifest_is_that_of_all_texts(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"the cat {name}\n" * 9)
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path in paths:
        tokenize_files([path], tokenizer, path.with_suffix(""), DocumentReader())
    merged = merge_files([path.with_suffix("") for path in paths], tmp_path / "all")
    tokenize_files(paths, tokenizer, tmp_path / "together", DocumentReader())
    manifest = read_manifest(tmp_path / "all")
    assert manifest == read_manifest(tmp_path / "together")
    check_tokens(merged, manifest)


def test_a_part_without_a_manifest_leaves_none(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat")
    tokenize_files([tmp_path / "a.txt"], tokenizer, tmp_path / "a", DocumentReader())
    merge_files([tmp_path / "a", *write(tmp_path, PARTS)], tmp_path / "all")
    assert read_manifest(tmp_path / "all") is None


def test_other_tokenizers_and_other_widths_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat")
    train_bpe(["another text"], 260, tmp_path / "other.json")
    for name, one in (("a", tokenizer), ("b", Tokenizer.open(tmp_path / "other.json"))):
        tokenize_files([tmp_path / "a.txt"], one, tmp_path / name, DocumentReader())
    with pytest.raises(UserError, match=r"b was tokenized with another tokenizer .*vocabulary 260.* than .*a "):
        merge_files([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    wide = write(tmp_path / "wide", PARTS, np.int32)
    with pytest.raises(UserError, match=r"part0 holds int32, not uint16: .* tokenize one of them again"):
        merge_files([tmp_path / "a", *wide], tmp_path / "all")
    assert not list(tmp_path.glob("*all*"))


@pytest.mark.parametrize("ending", ["bin", "idx", "json"])
def test_nothing_is_replaced(tmp_path: Path, ending: str) -> None:
    prefixes = write(tmp_path, PARTS)
    (tmp_path / f"all.{ending}").write_text("mine")
    with pytest.raises(UserError, match=rf"all\.{ending} exists already"):
        merge_files(prefixes, tmp_path / "all")
    with pytest.raises(UserError, match="exists already"):
        merge_files(prefixes, prefixes[0])
    assert (tmp_path / f"all.{ending}").read_text() == "mine"


def test_a_damaged_part_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    prefixes = write(tmp_path, PARTS)
    raw = bytearray(Path(f"{prefixes[2]}.idx").read_bytes())
    raw[34] += 1
    Path(f"{prefixes[2]}.idx").write_bytes(raw)
    with pytest.raises(UserError, match=r"part2\.idx: "):
        merge_files(prefixes, tmp_path / "all")
    assert not list(tmp_path.glob("*all*"))


def test_offsets_up_to_and_beyond_63_bits() -> None:
    lengths = np.array([2**31 - 1, 3, 2**31 - 1], np.int32)
    size = 8 * int(lengths.sum(dtype=np.int64))
    pointers, end = byte_pointers(lengths, 8, start=2**63 - 1 - size)
    assert end == 2**63 - 1
    assert pointers.tolist() == [end - size, end - size + 8 * (2**31 - 1), end - 8 * (2**31 - 1)]
    with pytest.raises(UserError, match=f"{2**63} bytes of tokens are more than"):
        byte_pointers(lengths, 8, start=2**63 - size)
