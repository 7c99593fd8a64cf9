"""A small byte-level tokenizer that the tests of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest

from megalith.tokens.bpe import train_bpe
from megalith.tokens.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path: Path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_bpe(["the cat sat on the mat, the cat ran\nnaïve café über größe\n" * 20], 320, path)
    return Tokenizer.open(path)
