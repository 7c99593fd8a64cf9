"""Pieces of long documents: their ids end to end are those of the whole, whatever kind of tokenizer it is."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from megalith.tokens.pieces import Piece, cut_before, pieces
from megalith.tokens.tokenizer import Tokenizer

WORDS = [
    "the",
    "cat",
    "größe",
    "1234567",
    "it's",
    "don't",
    "世界",
    "🙂",
    "a.b",
    "--",
    "\t",
    "  ",
    "\r",
    "x=1;",
    "\n\n",
    "\n \n",
]
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def text_of(seed: int, lines: int) -> str:
    choose = random.Random(seed)
    return "".join(
        " ".join(choose.choices(WORDS, k=choose.randint(0, 12))) + choose.choice(["\n", "\n", ".\n", "\r\n"])
        for _ in range(lines)
    )


def make(tmp_path: Path, kind: str) -> Tokenizer:
    """A tokenizer of a few hundred merges, cutting words as GPT-2, Llama 3 or Llama 2 does, or not at all."""
    inner = tokenizers.Tokenizer(models.BPE(byte_fallback=kind == "metaspace"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "gpt2")
    if kind == "llama3":
        split = pre_tokenizers.Split(tokenizers.Regex(LLAMA_3), behavior="isolated")
        inner.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    elif kind == "metaspace":
        inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        inner.pre_tokenizer = byte_level
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator([text_of(0, 3000)], trainer)
    inner.save(str(tmp_path / "tokenizer.json"))
    return Tokenizer.open(tmp_path)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("kind", "cuts"), [("gpt2", True), ("llama3", True), ("whole", True), ("metaspace", False)])
def test_ids_of_the_pieces_are_those_of_the_whole(tmp_path: Path, kind: str, cuts: bool, seed: int) -> None:
    tokenizer, text = make(tmp_path, kind), text_of(seed, 2000)
    for parts in ([(text, True)], [*((line, False) for line in text.splitlines(keepends=True)), ("", True)]):
        found = list(pieces(parts, tokenizer, 1500))
        assert "".join(piece.text for piece in found) == text
        assert [piece.is_last for piece in found] == [False] * (len(found) - 1) + [True]
        assert (len(found) > len(text) // 3000) == cuts
        assert [i for piece in found for i in tokenizer.encode(piece.text)] == tokenizer.encode(text)


def test_short_documents_stay_whole(tokenizer: Tokenizer) -> None:
    parts = [("one\n", False), ("two\n", True), ("", True), ("three", True)]
    assert list(pieces(parts, tokenizer)) == [Piece("one\ntwo\n", True), Piece("", True), Piece("three", True)]


@pytest.mark.parametrize("text", ["no line end " * 200, "\n" * 3000, "a" + "\n" * 2000 + "b"])
def test_there_may_be_no_place_to_cut(tokenizer: Tokenizer, text: str) -> None:
    assert cut_before(text, 0, 1500, tokenizer) == 0
    assert list(pieces([(text, True)], tokenizer, 1000)) == [Piece(text, True)]


def test_a_document_that_cannot_be_cut_is_not_joined_again_and_again(tokenizer: Tokenizer) -> None:
    """Time in proportion to the text: 30,000 parts without a place to cut."""
    parts = [("no line end ", False)] * 30_000 + [("", True)]
    assert [len(piece.text) for piece in pieces(parts, tokenizer, 1000)] == [360_000]
