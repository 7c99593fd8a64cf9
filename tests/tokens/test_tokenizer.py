"""Tokenizer: exact round trips, honest vocabulary size, no special token out of text."""

# ruff: noqa: RUF001 - letters of many scripts are what is tested

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from megalith.errors import UserError
from megalith.tokens.tokenizer import Tokenizer

TEXTS = [
    "",
    " ",
    "the cat  sat\n\n\n on   the mat ",
    "\t\r\n\r \x0b\x0c\x00\x01\x1f\x7f\x85",
    " , . ! ? 's n't  ' m 're",
    "Größe café naïve ÅÄÖ e\u0301 \u00e9",
    "日本語のテキスト。中文字符，测试！한국어 텍스트",
    "العربية עברית हिन्दी ไทย ქართული",
    "👩‍👩‍👧‍👦 😀 🏴󠁧󠁢󠁥󠁮󠁧󠁿 𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    "\u200b\ufeff\u2028\u2029\u3000\u00a0x\ufffd\U0010ffff",
    "before <|endoftext|> after <|endoftext|>",
    "x" * 10_000,
    "\n" * 1_000 + " " * 1_000,
]


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip_is_exact(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.byte_length(ids) == len(text.encode())


def test_batches_encode_as_single_texts_do(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_batch(TEXTS) == [tokenizer.encode(text) for text in TEXTS]


def test_text_never_yields_a_special_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.end_of_document not in tokenizer.encode("a<|endoftext|>b")


def test_byte_length_counts_cut_characters_and_skips_special_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("語")
    assert len(ids) == 3
    assert [tokenizer.byte_length(ids[:n]) for n in range(4)] == [0, 1, 2, 3]
    assert tokenizer.byte_length([tokenizer.end_of_document, *ids, tokenizer.end_of_document]) == 3


def test_byte_length_refuses_ids_outside_the_vocabulary(tokenizer: Tokenizer) -> None:
    size = tokenizer.vocab_size
    with pytest.raises(UserError, match=rf"token id {size} .* 0 to {size - 1}"):
        tokenizer.byte_length([1, size])
    with pytest.raises(UserError, match="token id -1 "):
        tokenizer.byte_length([-1])


def test_digest_is_that_of_the_file(tokenizer: Tokenizer) -> None:
    assert tokenizer.digest == hashlib.sha256(tokenizer.path.read_bytes()).hexdigest()


def write_tokenizer(path: Path, special: list[str], vocab_size: int = 256, **changes: Any) -> Path:
    """A byte-level tokenizer of single bytes, padded to `vocab_size` base tokens, with `special` added."""
    vocabulary = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary |= {f"filler {i}": i for i in range(256, vocab_size)}
    inner = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    inner.decoder = decoders.ByteLevel()  # pyright: ignore
    inner.add_special_tokens([AddedToken(name, special=True) for name in special])
    path.write_text(json.dumps(json.loads(inner.to_str()) | changes))
    return path


@pytest.mark.parametrize(
    ("special", "expected"),
    [(["<|endoftext|>"], 256), (["<s>", "</s>"], 257), (["<|begin_of_text|>", "<|end_of_text|>"], 257)],
)
def test_end_of_document_of_known_families(tmp_path: Path, special: list[str], expected: int) -> None:
    assert Tokenizer.open(write_tokenizer(tmp_path / "tokenizer.json", special)).end_of_document == expected


def test_no_end_of_document_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no token that ends a document: looked for <\|endoftext\|>, </s>"):
        Tokenizer.open(write_tokenizer(tmp_path / "tokenizer.json", ["[SEP]"]))


def test_vocabulary_size_counts_added_tokens(tmp_path: Path) -> None:
    special = [f"<extra {i}>" for i in range(9)] + ["<|endoftext|>"]
    tokenizer = Tokenizer.open(write_tokenizer(tmp_path / "tokenizer.json", special, vocab_size=65_530))
    assert tokenizer.vocab_size == 65_540
    assert tokenizer.end_of_document == 65_539


def test_truncation_and_padding_of_the_file_are_not_applied(tmp_path: Path) -> None:
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 32},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "!",
    }
    path = write_tokenizer(tmp_path / "tokenizer.json", ["</s>"], truncation=truncation, padding=padding)
    assert len(Tokenizer.open(path).encode("abcdef")) == 6


def test_not_byte_level_falls_back_to_decoded_text(tmp_path: Path) -> None:
    inner = tokenizers.Tokenizer(models.WordLevel({"größe": 0, "cat": 1, "</s>": 2, "?": 3}, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore
    inner.add_special_tokens(["</s>"])
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.open(tmp_path)
    assert tokenizer.byte_length([0, 1, 2]) == len("größe cat".encode())


@pytest.mark.parametrize("content", ["", "{}", "not json", '{"version": "1.0"}'])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match=r"tokenizer\.json is not a tokenizer\.json that"):
        Tokenizer.open(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read the tokenizer .*none\.json: No such file"):
        Tokenizer.open(tmp_path / "none.json")


def test_a_tokenizer_used_before_a_fork_works_after_it(tokenizer: Tokenizer) -> None:
    program = """
import multiprocessing, sys
from megalith.tokens.tokenizer import Tokenizer
tokenizer = Tokenizer.open(sys.argv[1])
text = "the cat sat on the mat"
expected = tokenizer.encode_batch([text] * 100)[0]
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(tokenizer.encode, [text] * 1000) == [expected] * 1000)
"""
    command = [sys.executable, "-c", program, str(tokenizer.path)]
    run = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=30, check=True)
    assert run.stdout.strip() == "True"
