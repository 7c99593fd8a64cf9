"""Beside NVIDIA's own package: its token files are read here and ours there, and both draw the same samples.

Runs where megatron-core is installed: `pip install '.[interop]'` and `pytest -m interop`.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from megalith.data.blend import draw_as_megatron
from megalith.data.samples import GPTSamples
from megalith.data.splits import split_ranges
from megalith.tokens.indexed import IndexedTokens
from megalith.tokens.merge import merge_files
from megalith.tokens.writer import IndexedWriter

pytestmark = pytest.mark.interop
DOCUMENTS = [[11, 12, 13, 14, 0], [21, 22, 0], [], [31, 32, 33, 34, 35, 36, 0], [], [41, 42] * 40]


@pytest.fixture(scope="module")
def megatron() -> SimpleNamespace:
    """The modules of megatron-core that are compared with."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reason = "megatron-core is not installed: pip install megatron-core==0.16.1 --no-deps"
        indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset", reason=reason, exc_type=ImportError)
        gpt = pytest.importorskip("megatron.core.datasets.gpt_dataset", reason=reason, exc_type=ImportError)
        helpers = pytest.importorskip("megatron.core.datasets.helpers", reason=reason, exc_type=ImportError)
    from megatron.core.datasets.utils import Split  # pyright: ignore[reportMissingImports]

    return SimpleNamespace(indexed=indexed, gpt=gpt, helpers=helpers, Split=Split)


def write_theirs(megatron: SimpleNamespace, prefix: Path, documents: list[list[int]], dtype: Any) -> None:
    builder = megatron.indexed.IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for document in documents:
        builder.add_document(np.array(document, dtype), [len(document)] if document else [])
    builder.finalize(f"{prefix}.idx")


def write_ours(prefix: Path, documents: list[list[int]], dtype: Any) -> None:
    with IndexedWriter(prefix, dtype) as writer:
        for document in documents:
            writer.append(document)


def documents_of(tokens: IndexedTokens) -> list[list[int]]:
    ends = tokens.document_ends.tolist()
    return [[i for s in range(ends[d], ends[d + 1]) for i in tokens[s].tolist()] for d in range(len(ends) - 1)]


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_files_are_equal_to_the_byte_and_each_reads_the_others(megatron, tmp_path: Path, dtype: Any) -> None:
    write_theirs(megatron, tmp_path / "theirs", DOCUMENTS, dtype)
    write_ours(tmp_path / "ours", DOCUMENTS, dtype)
    for ending in ("bin", "idx"):
        assert (tmp_path / f"ours.{ending}").read_bytes() == (tmp_path / f"theirs.{ending}").read_bytes()
    tokens = IndexedTokens(tmp_path / "theirs")
    tokens.verify()
    assert documents_of(tokens) == DOCUMENTS
    theirs = megatron.indexed.IndexedDataset(str(tmp_path / "ours"))
    assert [theirs[i].tolist() for i in range(len(theirs))] == [document for document in DOCUMENTS if document]
    assert theirs.document_indices.tolist() == tokens.document_ends.tolist()


def test_merged_files_are_those_that_their_builder_merges(megatron, tmp_path: Path) -> None:
    for i, documents in enumerate((DOCUMENTS, [], DOCUMENTS[:2])):
        write_ours(tmp_path / str(i), documents, np.uint16)
    merge_files([tmp_path / str(i) for i in range(3)], tmp_path / "ours")
    builder = megatron.indexed.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.uint16)
    for i in range(3):
        builder.add_index(str(tmp_path / str(i)))
    builder.finalize(str(tmp_path / "theirs.idx"))
    for ending in ("bin", "idx"):
        assert (tmp_path / f"ours.{ending}").read_bytes() == (tmp_path / f"theirs.{ending}").read_bytes()


@pytest.mark.parametrize("num_samples", [1, 37, 200, 1000])
@pytest.mark.parametrize("seq_len", [4, 64])
@pytest.mark.parametrize("seed", [1, 1234])
def test_their_dataset_gives_the_same_samples(megatron, tmp_path: Path, num_samples, seq_len, seed) -> None:
    random = np.random.RandomState(0)
    documents = [random.randint(0, 999, size).tolist() for size in random.randint(1, 90, 60)]
    write_ours(tmp_path / "text", documents, np.uint16)
    sequences = split_ranges("90,10,0", len(documents))[0]
    config = megatron.gpt.GPTDatasetConfig(
        random_seed=seed,
        sequence_length=seq_len,
        blend=([str(tmp_path / "text")], None),
        split="90,10,0",
        path_to_cache=str(tmp_path / "cache"),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        tokenizer=SimpleNamespace(unique_identifiers={"class": "none"}, eod=0, pad=-1, vocab_size=1000),
    )
    theirs = megatron.gpt.GPTDataset(
        megatron.indexed.IndexedDataset(str(tmp_path / "text")),
        str(tmp_path / "text"),
        np.arange(sequences.start, sequences.stop, dtype=np.int32),
        num_samples,
        megatron.Split.train,
        config,
    )
    ours = GPTSamples(IndexedTokens(tmp_path / "text"), sequences, seq_len, seed, num_samples)
    assert len(ours) == len(theirs) >= num_samples
    for i in range(len(ours)):
        sample = theirs[i]
        assert ours[i][:-1].tolist() == sample["tokens"].tolist(), i
        assert ours[i][1:].tolist() == sample["labels"].tolist(), i


@pytest.mark.parametrize("weights", [[0.5, 0.25, 0.25], [30, 70], [0.0005] * 20 + [0.99], [1.0]])
def test_their_blend_draws_the_same_sources(megatron, weights: list[float]) -> None:
    shares = np.array(weights) / np.sum(weights)
    source, sample = np.zeros(3000, np.int16), np.zeros(3000, np.int64)
    megatron.helpers.build_blending_indices(source, sample, shares.tolist(), len(shares), 3000, False)
    assert draw_as_megatron(shares, np.zeros(len(shares), np.int64), 3000).tolist() == source.tolist()
