"""`megalith data`: its examples run, its JSON is what a script needs, its errors are one line with exit code 2."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from megalith.cli import data
from megalith.cli.main import main
from megalith.tokens.indexed import IndexedTokens
from megalith.tokens.tokenizer import Tokenizer

TEXT = "the first document, the only one\n\n\nthe second document\n" * 30


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in with corpus.txt and corpus.jsonl."""
    (tmp_path / "corpus.txt").write_text(TEXT)
    (tmp_path / "corpus.jsonl").write_text('{"body": ""}\n{"body": "hi there"}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def tokenizer(folder: Path) -> Path:
    assert main(["data", "tokenizer", "corpus.txt", "--vocab-size", "300", "--output", "t/tokenizer.json"]) == 0
    return folder / "t" / "tokenizer.json"


def test_the_examples_of_the_help_run_in_order(folder: Path) -> None:
    (folder / "corpus").mkdir()
    assert data.EXAMPLE.strip().splitlines()[:2] == [data.VERB_EXAMPLES["tokenizer"], data.VERB_EXAMPLES["tokenize"]]
    for line in [*data.EXAMPLE.strip().splitlines(), *data.VERB_EXAMPLES.values()]:
        assert main(shlex.split(line)[1:]) == 0, line
    assert sorted(p.name for p in (folder / "corpus").iterdir()) == [
        "tokenizer.json",
        "train.bin",
        "train.idx",
        "train.json",
    ]


@pytest.mark.parametrize("verb", ["tokenizer", "tokenize", "inspect"])
def test_each_help_shows_its_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["data", verb, "--help"])
    assert ended.value.code == 0
    assert data.VERB_EXAMPLES[verb] in capsys.readouterr().out


def test_tokenizer_says_where_the_text_gave_too_few_tokens(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "t").mkdir()
    assert (
        main(["data", "tokenizer", "corpus.jsonl", "--json-key", "body", "--vocab-size", "999", "--output", "t"]) == 0
    )
    size = Tokenizer.open("t").vocab_size
    assert capsys.readouterr().out.strip().startswith(f"t/tokenizer.json: {size} tokens, fewer than 999")


@pytest.mark.parametrize(("options", "documents"), [([], 1), (["--split-documents-on-blank-lines", "2"], 31)])
def test_tokenize_and_inspect_agree_in_json(
    folder: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str], options: list[str], documents: int
) -> None:
    capsys.readouterr()
    command = ["data", "tokenize", "corpus.txt", "--tokenizer", "t", "--output-prefix", "out/train", "--json", *options]
    assert main(command) == 0
    manifest = json.loads(capsys.readouterr().out)
    assert main(["data", "inspect", "out/train", "--tokenizer", "t", "--first-tokens", "5", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert manifest["documents"] == facts["documents"] == facts["sequences"] == documents
    assert manifest["tokens"] == facts["tokens"] == IndexedTokens("out/train").num_tokens
    assert facts["dtype"] == manifest["dtype"] == "uint16"
    assert facts["first_tokens"] == Tokenizer.open("t").encode(TEXT)[:5]
    assert TEXT.startswith(facts["first_text"])
    assert facts["vocab_size"] == manifest["vocab_size"]


def test_end_of_document_can_be_left_out(folder: Path, tokenizer: Path) -> None:
    sizes = []
    for option in ("--append-eod", "--no-append-eod"):
        command = ["data", "tokenize", "corpus.jsonl", "--json-key", "body", "--tokenizer", "t", "--output-prefix", "x"]
        assert main([*command, option]) == 0
        sizes.append(IndexedTokens("x").num_tokens)
    assert sizes[0] == sizes[1] + 1
    assert IndexedTokens("x").num_documents == 2


def test_inspect_without_a_manifest_says_so(folder: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "tokenize", "corpus.txt", "--tokenizer", "t", "--output-prefix", "x"]) == 0
    (folder / "x.json").unlink()
    assert main(["data", "inspect", "x"]) == 0
    assert "unknown (no manifest)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("tokenizer none.txt --vocab-size 300 --output x.json", "not a file: none.txt"),
        ("tokenizer corpus.txt --vocab-size 100 --output x.json", "vocab_size=100 is too small"),
        ("tokenizer corpus.jsonl --vocab-size 300 --output x.json", "corpus.jsonl, line 1: no key 'text'"),
        ("tokenizer corpus.txt --vocab-size 300 --output x.json --split-documents-on-blank-lines -1", "-1 is negative"),
        ("tokenize corpus.txt --tokenizer none.json --output-prefix x", "cannot read the tokenizer none.json"),
        ("tokenize corpus.txt --tokenizer corpus.txt --output-prefix x", "corpus.txt is not a tokenizer.json"),
        ("inspect none", "none.idx: No such file or directory; a prefix is the path without .bin or .idx"),
        ("inspect none --first-tokens -1", "--first-tokens -1 is negative"),
    ],
)
def test_faults_are_one_line_and_exit_code_2(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, message: str
) -> None:
    before = sorted(folder.iterdir())
    assert main(["data", *command.split()]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert sorted(folder.iterdir()) == before


def test_inspect_refuses_another_tokenizer(folder: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "tokenize", "corpus.txt", "--tokenizer", "t", "--output-prefix", "x"]) == 0
    assert main(["data", "tokenizer", "corpus.txt", "--vocab-size", "270", "--output", "other.json"]) == 0
    assert main(["data", "inspect", "x", "--tokenizer", "other.json"]) == 2
    assert "another tokenizer" in capsys.readouterr().err
