"""Token files out of text, with a manifest that refuses a wrong pairing."""

from __future__ import annotations

import hashlib
import json
import os
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from megalith.errors import UserError
from megalith.tokens.bpe import train_bpe
from megalith.tokens.corpus import batched_by_size, map_ahead, one_thread_each, tokenize_files
from megalith.tokens.documents import DocumentReader
from megalith.tokens.indexed import IndexedTokens
from megalith.tokens.manifest import Source, check_manifest, read_manifest
from megalith.tokens.pieces import Piece
from megalith.tokens.tokenizer import Tokenizer

TEXTS = ["", "the cat", "größe\n<|endoftext|>", "", "x" * 300]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


@pytest.mark.parametrize("append_eod", [True, False])
def test_documents_come_back_as_text(tokenizer: Tokenizer, corpus: Path, append_eod: bool) -> None:
    prefix = corpus.parent / "out" / "train"
    manifest = tokenize_files([corpus], tokenizer, prefix, DocumentReader(), append_eod=append_eod)
    tokens = IndexedTokens(prefix)
    tokens.verify()
    assert tokens.num_documents == manifest.documents == len(TEXTS)
    assert tokens.document_ends.tolist() == [0, 0, 1, 2, 2, 3]
    assert [tokenizer.decode(tokens[i].tolist()) for i in range(len(tokens))] == [text for text in TEXTS if text]
    ends = [int(tokens[i][-1]) == tokenizer.end_of_document for i in range(len(tokens))]
    assert ends == [append_eod] * 3
    assert tokenizer.byte_length(tokens.first(tokens.num_tokens)) == manifest.text_bytes


def test_the_manifest_says_what_was_made(tokenizer: Tokenizer, corpus: Path) -> None:
    prefix = corpus.parent / "train"
    written = tokenize_files([corpus], tokenizer, prefix, DocumentReader())
    manifest = check_manifest(prefix, tokenizer)
    assert manifest is not None
    assert manifest == written
    assert manifest.tokenizer_digest == tokenizer.digest
    assert manifest.vocab_size == tokenizer.vocab_size
    assert manifest.text_bytes == sum(len(text.encode()) for text in TEXTS)
    assert manifest.tokens * 2 == manifest.bin_bytes == (corpus.parent / "train.bin").stat().st_size
    assert manifest.bin_sha256 == hashlib.sha256((corpus.parent / "train.bin").read_bytes()).hexdigest()
    content = corpus.read_bytes()
    assert manifest.sources == (Source(str(corpus), len(content), hashlib.sha256(content).hexdigest()),)


def test_another_tokenizer_is_refused(tokenizer: Tokenizer, corpus: Path) -> None:
    prefix = corpus.parent / "train"
    tokenize_files([corpus], tokenizer, prefix, DocumentReader())
    train_bpe(["another text"], 260, corpus.parent / "other.json")
    with pytest.raises(UserError, match=f"another tokenizer .*{tokenizer.digest[:12]}.*vocabulary 260"):
        check_manifest(prefix, Tokenizer.open(corpus.parent / "other.json"))


def test_files_of_other_tools_have_no_manifest(tokenizer: Tokenizer, corpus: Path) -> None:
    prefix = corpus.parent / "train"
    tokenize_files([corpus], tokenizer, prefix, DocumentReader())
    (corpus.parent / "train.json").unlink()
    assert check_manifest(prefix, tokenizer) is None


def test_a_manifest_of_another_bin_is_refused(tokenizer: Tokenizer, corpus: Path) -> None:
    prefix = corpus.parent / "train"
    tokenize_files([corpus], tokenizer, prefix, DocumentReader())
    with open(f"{prefix}.bin", "ab") as file:
        file.write(bytes(2))
    with pytest.raises(UserError, match="of different runs"):
        read_manifest(prefix)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"sources": 1}', '{"sources": [{"path": "x"}]}'])
def test_a_damaged_manifest_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "train.json").write_text(content)
    with pytest.raises(UserError, match=r"train\.json: not a manifest"):
        read_manifest(tmp_path / "train")


def test_a_fault_in_the_text_leaves_the_older_files(tokenizer: Tokenizer, corpus: Path) -> None:
    prefix = corpus.parent / "train"
    tokenize_files([corpus], tokenizer, prefix, DocumentReader())
    before = {path.name: path.read_bytes() for path in corpus.parent.glob("train.*")}
    (corpus.parent / "bad.jsonl").write_text('{"text": "fine"}\nbroken\n')
    with pytest.raises(UserError, match="line 2"):
        tokenize_files([corpus.parent / "bad.jsonl"], tokenizer, prefix, DocumentReader())
    assert {path.name: path.read_bytes() for path in corpus.parent.glob("*train.*")} == before


@pytest.mark.parametrize("name", ["source.json", "tokenizer.json"])
def test_an_input_is_never_replaced(tokenizer: Tokenizer, tmp_path: Path, name: str) -> None:
    (tmp_path / "source.json").write_text('{"text": "x"}')
    (tmp_path / "tokenizer.json").write_bytes(tokenizer.path.read_bytes())
    prefix = tmp_path / name.removesuffix(".json")
    with pytest.raises(UserError, match=rf"would replace the input .*{name}; choose another"):
        tokenize_files(
            [tmp_path / "source.json"], Tokenizer.open(tmp_path / "tokenizer.json"), prefix, DocumentReader()
        )
    assert (tmp_path / "source.json").read_text() == '{"text": "x"}'
    assert Tokenizer.open(tmp_path).digest == tokenizer.digest


def test_batches_are_bounded_and_keep_order() -> None:
    texts = [Piece(str(i), True) for i in range(3000)] + [Piece("x" * (1 << 16), False)] * 2 + [Piece("tail", True)]
    batches = list(batched_by_size(texts))
    assert [text for batch in batches for text in batch] == texts
    assert [len(batch) for batch in batches] == [1024, 1024, 952, 1, 1, 1]


def test_results_come_in_order_and_few_items_are_under_way() -> None:
    started = 0

    def items() -> Iterator[int]:
        nonlocal started
        for i in range(50):
            started += 1
            yield i

    with ThreadPoolExecutor(4) as pool:
        for done, (item, result) in enumerate(map_ahead(pool, lambda i: i * i, items(), 5)):
            assert (item, result) == (done, done * done)
            assert started <= done + 6


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_writes_the_same_bytes(tokenizer: Tokenizer, tmp_path: Path, threads: int) -> None:
    texts = [f"the cat {i} sat\n" * (i % 40) for i in range(800)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "b.txt").write_text("".join(texts))
    sources = [tmp_path / "a.jsonl", tmp_path / "b.txt"]
    manifest = tokenize_files(sources, tokenizer, tmp_path / "out", DocumentReader(), num_threads=threads)
    tokens, end = IndexedTokens(tmp_path / "out"), [tokenizer.end_of_document]
    assert manifest.documents == tokens.num_documents == 801
    expected = [tokenizer.encode(text) + end for text in [*texts, "".join(texts)] if text]
    assert [tokens[i].tolist() for i in range(len(tokens))] == expected


def test_memory_does_not_grow_with_the_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """One plain file, so one document: three times the text takes no more memory."""
    peaks = []
    for name, repeats in (("warm", 1), ("short", 300), ("long", 900)):
        (tmp_path / name).write_text("the cat sat on the mat, the cat ran\n" * 300 * repeats)
        tracemalloc.start()
        try:
            tokenize_files([tmp_path / name], tokenizer, tmp_path / "out", DocumentReader(), num_threads=2)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[2] < 2 * peaks[1]


def test_an_interrupted_run_leaves_nothing_and_ends_at_once(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat sat\n" * 200_000)
    told = 0

    def interrupt(num_bytes: int) -> None:
        nonlocal told
        told += num_bytes
        if told > 1 << 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenize_files([tmp_path / "a.txt"], tokenizer, tmp_path / "out", DocumentReader(), on_bytes=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("before", [None, "true"])
def test_the_librarys_own_threads_are_off_meanwhile(monkeypatch, before: str | None) -> None:
    name = "TOKENIZERS_PARALLELISM"
    monkeypatch.delenv(name, raising=False)
    if before:
        monkeypatch.setenv(name, before)
    with one_thread_each():
        assert os.environ[name] == "false"
    assert os.environ.get(name) == before
