"""`megalith data`: its examples run, its JSON is what a script needs, its errors are one line with exit code 2."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megalith.cli import data
from megalith.cli.main import main
from megalith.cli.progress import bytes_progress
from megalith.tokens.indexed import IndexedTokens
from megalith.tokens.tokenizer import Tokenizer

RECIPE = """
model: gpt-tiny
data: {prefix: corpus/train, split: '100,0,0'}
batch: {seq_len: 16, micro_batch_size: 2, global_batch_size: 4}
train_steps: 9
output: run
"""
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
    (folder / "recipe.yaml").write_text(RECIPE)
    for line in data.EXAMPLE.strip().splitlines():
        assert main(shlex.split(line)[1:]) == 0, line
    for ending in ("bin", "idx", "json"):
        shutil.copy(folder / "corpus" / f"train.{ending}", folder / "corpus" / f"more.{ending}")
    for line in data.VERB_EXAMPLES.values():
        assert main(shlex.split(line)[1:]) == 0, line
    made = {p.name for p in (folder / "corpus").iterdir()}
    files = {f"{name}.{ending}" for name in ("train", "more", "twice", "all") for ending in ("bin", "idx", "json")}
    assert made == files | {"tokenizer.json", "index_cache"}


@pytest.mark.parametrize("verb", data.VERB_EXAMPLES)
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
        ("tokenize corpus.txt --tokenizer x --output-prefix x --threads -1", "--threads -1 is negative"),
        ("merge none other --output-prefix x", "none.idx: No such file or directory"),
        ("prepare-index none.yaml", "cannot read the recipe none.yaml"),
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


def test_prepare_index_builds_everything_once_and_tells_the_epochs(
    folder: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "recipe.yaml").write_text(RECIPE)
    command = ["data", "tokenize", "corpus.txt", "--tokenizer", "t", "--output-prefix", "corpus/train"]
    assert main(command) == 0
    capsys.readouterr()
    told = []
    for _ in range(2):
        assert main(["data", "prepare-index", "recipe.yaml", "train_steps=50", "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out))
    samples = (IndexedTokens("corpus/train").num_tokens - 1) // 16
    assert [(source["samples"], source["epochs"]) for source in told[0]["sources"]] == [(200, 200 / samples)]
    assert told[0]["caches"] == ["corpus/index_cache"]
    assert told[0]["builds"] > 0 == told[1]["builds"]


@pytest.mark.parametrize(
    ("damage", "says"), [(b"\xff\xff", "token 3 has id 65535"), (b"\x05\x00", "not the ones written")]
)
def test_verify_reads_every_token(
    folder: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str], damage: bytes, says: str
) -> None:
    assert main(["data", "tokenize", "corpus.txt", "--tokenizer", "t", "--output-prefix", "x"]) == 0
    assert main(["data", "inspect", "x", "--verify"]) == 0
    with open("x.bin", "r+b") as file:
        file.seek(6)
        file.write(damage)
    assert main(["data", "inspect", "x"]) == 0
    assert main(["data", "inspect", "x", "--verify"]) == 2
    assert f"x.bin: {says}" in capsys.readouterr().err.replace("its bytes are ", "")


def test_progress_without_a_terminal_is_a_line_with_rate_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    with bytes_progress("reading", 1 << 30) as on_bytes:
        on_bytes(1 << 20)
        assert capsys.readouterr().err == ""
        on_bytes.__self__.next_line = 0.0  # pyright: ignore[reportFunctionMemberAccess] - two seconds later
        on_bytes(1 << 20)
    line = capsys.readouterr().err
    assert line.startswith("reading: 0% of 1.00 GiB, ") and "/s, ETA " in line and line.count("\n") == 1


def test_ctrl_c_leaves_what_the_same_command_makes_whole(folder: Path, tokenizer: Path) -> None:
    (folder / "long.txt").write_text(TEXT * 2000)
    command = ["data", "tokenize", "long.txt", "--tokenizer", "t", "--output-prefix", "out/x"]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    started = subprocess.Popen([sys.executable, "-m", "megalith", *command], env=env, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(folder.glob("out/.x.bin.*")):
        assert started.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    started.send_signal(signal.SIGINT)
    error = started.communicate(timeout=60)[1]
    assert started.returncode == 130 and "interrupted" in error and "Traceback" not in error
    assert list((folder / "out").iterdir()) == []
    (folder / "long.txt").write_text(TEXT)
    assert main(command) == 0
    assert IndexedTokens("out/x").num_documents == 1
