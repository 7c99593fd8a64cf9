"""Token files out of text, with a manifest that refuses a wrong pairing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megalith.errors import UserError
from megalith.tokens.bpe import train_bpe
from megalith.tokens.corpus import batched_by_size, tokenize_files
from megalith.tokens.documents import DocumentReader
from megalith.tokens.indexed import IndexedTokens
from megalith.tokens.manifest import Source, check_manifest, read_manifest
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
    assert manifest.sources == (Source(str(corpus), corpus.stat().st_size),)


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
    texts = [str(i) for i in range(3000)] + ["x" * (1 << 22)] * 2 + ["tail"]
    batches = list(batched_by_size(texts))
    assert [text for batch in batches for text in batch] == texts
    assert [len(batch) for batch in batches] == [1024, 1024, 952, 1, 1, 1]
