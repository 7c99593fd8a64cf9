"""Documents out of files: nothing lost, nothing changed, and every fault with its file and line."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from megalith.errors import UserError
from megalith.tokens.documents import DocumentReader, check_files


def test_a_plain_file_is_one_document_as_it_stands(tmp_path: Path) -> None:
    text = "first\r\n\r\n\r\n\r\n  second\t\n\x0c\x85\u2028 no end"
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "empty").write_bytes(b"")
    assert list(DocumentReader().read([tmp_path / "a.txt", tmp_path / "empty"])) == [text, ""]


@pytest.mark.parametrize(
    ("blank_lines", "expected"),
    [
        (1, ["a\n", "b\nc\n", "d\n", "e"]),
        (2, ["a\n\nb\nc\n", "d\n", "e"]),
        (3, ["a\n\nb\nc\n", "d\n \t\n\ne"]),
        (4, ["a\n\nb\nc\n\n\n\nd\n \t\n\ne"]),
    ],
)
def test_blank_lines_part_documents(tmp_path: Path, blank_lines: int, expected: list[str]) -> None:
    (tmp_path / "a.txt").write_text("\n\n\n\na\n\nb\nc\n\n\n\nd\n \t\n\ne")
    assert list(DocumentReader(blank_lines=blank_lines).read([tmp_path / "a.txt"])) == expected


def test_blank_lines_never_join_two_files(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"{name}\n")
    assert list(DocumentReader(blank_lines=2).read([tmp_path / "b.txt", tmp_path / "a.txt"])) == ["b.txt\n", "a.txt\n"]


@pytest.mark.parametrize("ending", ["jsonl", "ndjson", "json"])
def test_json_lines(tmp_path: Path, ending: str) -> None:
    texts = ["", "hi", "line\nbreak\u2028 and more", "ünïcödé"]
    lines = [json.dumps({"id": i, "text": text}, ensure_ascii=i % 2 == 0) for i, text in enumerate(texts)]
    (tmp_path / f"a.{ending}").write_text("\n\n".join(lines) + "\n")
    assert list(DocumentReader().read([tmp_path / f"a.{ending}"])) == texts


def test_json_key_is_a_choice(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"content": "yes", "text": "no"}')
    assert list(DocumentReader(json_key="content").read([tmp_path / "a.jsonl"])) == ["yes"]


def test_surrogates_become_storable_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(r'{"text": "pair \ud83d\ude00 lone \ud800 end"}')
    assert list(DocumentReader().read([tmp_path / "a.jsonl"])) == ["pair 😀 lone \ufffd end"]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "x"}')
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfx \xef\xbb\xbf")
    assert list(DocumentReader().read([tmp_path / "a.jsonl", tmp_path / "a.txt"])) == ["x", "x \ufeff"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": ', "not JSON"),
        ('["text"]', "a list, not a JSON object"),
        ('{"body": "x", "id": 1}', "no key 'text'; its keys are 'body', 'id'; choose with --json-key"),
        ("{}", "its keys are none"),
        ('{"text": null}', "'text' is a NoneType, not text"),
        ('{"text": ["x"]}', "'text' is a list, not text"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n\n' + line + "\n")
    with pytest.raises(UserError, match=r"a\.jsonl, line 3: .*" + message):
        list(DocumentReader().read([tmp_path / "a.jsonl"]))


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_bytes_that_are_no_text_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b'{"text": "x"}\nab\xff')
    with pytest.raises(UserError, match=rf"{name}, line 2: byte 3 is not UTF-8 text"):
        list(DocumentReader().read([tmp_path / name]))


@pytest.mark.parametrize("blank_lines", [0, 1])
def test_progress_adds_up_to_the_files(tmp_path: Path, blank_lines: int) -> None:
    (tmp_path / "a.txt").write_text("ä\n\nb\n" * 10)
    (tmp_path / "b.jsonl").write_text('{"text": "x"}\n' * 3)
    paths = [tmp_path / "a.txt", tmp_path / "b.jsonl"]
    heard: list[int] = []
    list(DocumentReader(blank_lines=blank_lines).read(paths, heard.append))
    assert sum(heard) == check_files(paths) == 60 + 42


def test_all_missing_files_are_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "here.txt").write_text("x")
    with pytest.raises(UserError, match=rf"not a file: {tmp_path}/none\.txt, {tmp_path};"):
        check_files([tmp_path / "none.txt", tmp_path / "here.txt", tmp_path])


def zstd(content: bytes) -> bytes:
    return pytest.importorskip("zstandard").compress(content)


@pytest.mark.parametrize(
    ("ending", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress), ("zst", zstd)]
)
def test_compressed_files_are_read_as_what_they_hold(tmp_path: Path, ending: str, pack: Callable) -> None:
    texts = [f"text {i} größe\n" * 50 for i in range(200)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    (tmp_path / f"a.jsonl.{ending}").write_bytes(pack(lines[:9000]) + pack(lines[9000:]))  # as `cat a.gz b.gz` does
    (tmp_path / f"b.txt.{ending}").write_bytes(pack("".join(texts).encode()))
    paths = [tmp_path / f"a.jsonl.{ending}", tmp_path / f"b.txt.{ending}"]
    heard: list[int] = []
    assert list(DocumentReader().read(paths, heard.append)) == [*texts, "".join(texts)]
    assert sum(heard) == check_files(paths)


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
def test_a_cut_or_wrong_compressed_file_is_named(tmp_path: Path, ending: str, pack: Callable) -> None:
    packed = pack(b'{"text": "x"}\n' * 9999)
    for content in (packed[:-9], b'{"text": "x"}\n'):
        (tmp_path / f"a.jsonl.{ending}").write_bytes(content)
        with pytest.raises(UserError, match=rf"a\.jsonl\.{ending}: not a whole \.{ending} file .*copy it again"):
            list(DocumentReader().read([tmp_path / f"a.jsonl.{ending}"]))


def test_parts_of_a_plain_file_are_its_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.jsonl").write_text('{"text": "three\\nfour"}\n')
    parts = list(DocumentReader().read_parts([tmp_path / "a.txt", tmp_path / "b.jsonl"]))
    assert parts == [("one\n", False), ("two\n", False), ("", True), ("three\nfour", True)]
