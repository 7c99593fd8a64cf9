"""BPE training: deterministic, complete over bytes, honest about its size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from megalith.errors import UserError
from megalith.tokens.bpe import pieces, train_bpe
from megalith.tokens.tokenizer import Tokenizer

TEXT = ["the cat sat on the mat, the cat ran\n" * 20, "a dog and a cat\n" * 20]


def test_vocabulary_holds_every_byte_and_the_end_of_a_document(tmp_path: Path) -> None:
    size = train_bpe(["aa"], 257, tmp_path / "tokenizer.json")
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert size == 257
    assert vocabulary["<|endoftext|>"] == 0
    assert len([token for token in vocabulary if len(token) == 1]) == 256


def test_the_first_merge_is_the_most_frequent_pair(tmp_path: Path) -> None:
    train_bpe(["xyxy xyab"], 258, tmp_path / "tokenizer.json")
    tree = json.loads((tmp_path / "tokenizer.json").read_text())
    assert tree["model"]["merges"] == [["x", "y"]]


def test_same_text_gives_the_same_file_whatever_the_threads(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("".join(TEXT))
    code = (
        "import sys; from pathlib import Path; from megalith.tokens.bpe import train_bpe; "
        "train_bpe([Path(sys.argv[1]).read_text()], 300, Path(sys.argv[2]))"
    )
    for threads in ("1", "4"):
        command = [sys.executable, "-c", code, str(tmp_path / "corpus.txt"), str(tmp_path / f"{threads}.json")]
        subprocess.run(command, check=True, timeout=60, env={**os.environ, "RAYON_NUM_THREADS": threads})
    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "4.json").read_bytes()


def test_too_little_text_gives_fewer_tokens_than_asked(tmp_path: Path) -> None:
    size = train_bpe(["ab"], 1000, tmp_path / "tokenizer.json")
    assert size == 258
    assert Tokenizer.open(tmp_path).vocab_size == 258


@pytest.mark.parametrize("vocab_size", [0, 256, -1])
def test_a_vocabulary_that_cannot_hold_the_bytes_is_refused(tmp_path: Path, vocab_size: int) -> None:
    with pytest.raises(UserError, match=f"vocab_size={vocab_size} .* choose 257 or more"):
        train_bpe(TEXT, vocab_size, tmp_path / "tokenizer.json")
    assert list(tmp_path.iterdir()) == []


def test_no_text_is_refused_and_leaves_an_older_tokenizer_alone(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("older")
    with pytest.raises(UserError, match="no text"):
        train_bpe(["", ""], 300, tmp_path / "tokenizer.json")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("tokenizer.json", "older")]


@pytest.mark.parametrize("text", ["", "abcdefghij", "ab\ncd\nefghijkl\n\n", "\n\n\n\n\n\n"])
@pytest.mark.parametrize("limit", [1, 3, 4, 100])
def test_pieces_are_bounded_and_lose_nothing(text: str, limit: int) -> None:
    cut = list(pieces(text, limit))
    assert "".join(cut) == text
    assert all(0 < len(piece) <= limit for piece in cut)


def test_pieces_end_at_a_line_where_they_can() -> None:
    assert list(pieces("ab\ncd\nef", 4)) == ["ab\n", "cd\n", "ef"]
