"""A corpus of few tokens and a recipe that trains on it in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from megalith.tokens.bpe import train_bpe
from megalith.tokens.tokenizer import Tokenizer
from megalith.tokens.writer import IndexedWriter

WORDS = (
    "quick",
    "brown",
    "foxes",
    "jump",
    "over",
    "lazy",
    "dogs",
    "and",
    "run",
    "from",
    "all",
    "the",
    "noise",
    "of",
    "town",
)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from threads, and threads that wait for busy cores cost seconds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """Folder with tokenizer.json and tokens.bin/.idx: 60 documents of unequal length over a vocabulary of 300."""
    folder = tmp_path_factory.mktemp("corpus")
    random = np.random.RandomState(0)
    texts = [" ".join(random.choice(WORDS, 10 + i % 7)) for i in range(60)]
    train_bpe(texts, 300, folder / "tokenizer.json")
    tokenizer = Tokenizer.open(folder)
    with IndexedWriter(folder / "tokens", np.uint16) as writer:
        for text in texts:
            writer.append([*tokenizer.encode(text), tokenizer.end_of_document])
    return folder


def tiny_recipe(corpus: Path, output: Path) -> dict:
    """Two layers with dropout, six steps of two micro-batches; resumes and checkpoints at every third."""
    model = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_kv_heads": 2, "vocab_size": 300}
    return {
        "model": model | {"max_seq_len": 16, "dropout": 0.1},
        "data": {"prefix": str(corpus / "tokens"), "split": "80,20,0", "tokenizer": str(corpus / "tokenizer.json")},
        "batch": {"seq_len": 16, "micro_batch_size": 2, "global_batch_size": 4},
        "train_steps": 6,
        "output": str(output),
        "schedule": {"warmup_steps": 2},
        "validation": {"interval_steps": 3, "max_batches": 2},
        "checkpoint": {"interval_steps": 3, "keep": 2},
    }


@pytest.fixture
def write_recipe(corpus, tmp_path):
    """A function that writes the tiny recipe with changes at top level and returns its path."""

    def write(output: Path, **changes) -> Path:
        path = tmp_path / f"{output.name}.yaml"
        path.write_text(yaml.safe_dump(tiny_recipe(corpus, output) | changes))
        return path

    return write
