"""GPT samples: Megatron's order to the last index, every token used as documented, nothing that overflows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from megalith.data.samples import GPTSamples, document_index, plan_epochs, sample_index, shuffle_index
from megalith.errors import UserError
from megalith.tokens.indexed import IndexedTokens

from .conftest import MakeTokens

GOLDEN_FOLDER = Path(__file__).parents[1] / "golden"
GOLDEN = json.loads((GOLDEN_FOLDER / "megatron_order.json").read_text())


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("case_")])
def test_golden_order(name: str) -> None:
    case = GOLDEN[name]
    lengths = np.array(case["lens"], np.int32)
    epochs = plan_epochs(int(lengths.sum()), case["S"], case["n"])
    random = np.random.RandomState(case["seed"])
    documents = document_index(np.arange(len(lengths)), epochs, random)
    rows = sample_index(lengths[documents], case["S"])
    shuffled = shuffle_index(len(rows) - 1, epochs, random)
    assert epochs.count == case["epochs"]
    assert (epochs.whole_samples is not None) == case["separate_last"]
    assert documents.tolist() == case["document_index"]
    assert rows.tolist() == case["sample_index"]
    assert shuffled.tolist() == case["shuffle_index"]
    assert documents.dtype == rows.dtype == shuffled.dtype == np.int64


def test_golden_file_gives_golden_samples() -> None:
    case = GOLDEN["case_three_epochs"]
    tokens = IndexedTokens(GOLDEN_FOLDER / "tiny")
    samples = GPTSamples(tokens, range(3), case["S"], case["seed"], case["n"])
    stream = np.concatenate([tokens[i] for i in case["document_index"]])
    assert [s.tolist() for s in map(samples.__getitem__, range(len(samples)))] == [
        stream[4 * j : 4 * j + 5].tolist() for j in case["shuffle_index"]
    ]


@pytest.mark.parametrize("lengths", [[7, 1, 30, 2, 2, 11], [100], [1] * 50])
@pytest.mark.parametrize("seq_len", [1, 4, 9])
@pytest.mark.parametrize("num_samples", [None, 1, 30, 77])
def test_each_token_is_an_input_once_an_epoch(
    make_tokens: MakeTokens, lengths: list[int], seq_len: int, num_samples: int | None
) -> None:
    tokens = make_tokens(lengths)
    samples = GPTSamples(tokens, range(len(lengths)), seq_len, 5, num_samples)
    assert len(samples) >= (num_samples or 0)
    assert samples[0].shape == (seq_len + 1,)
    stream = np.concatenate([tokens[i] for i in samples.document_index])
    order = np.argsort(samples.shuffle_index)
    inputs = np.concatenate([samples[int(i)][:-1] for i in order])
    targets = np.concatenate([samples[int(i)][1:] for i in order])
    used = len(samples) * seq_len
    assert np.array_equal(inputs, stream[:used])
    assert np.array_equal(targets, stream[1 : used + 1])
    assert len(stream) - used <= seq_len
    assert np.unique(stream, return_counts=True)[1].tolist() == [samples.epochs.count] * sum(lengths)


def test_a_split_holds_only_its_own_sequences(make_tokens: MakeTokens) -> None:
    samples = GPTSamples(make_tokens([10] * 10), range(6, 9), 4, 1, 20)
    seen = np.concatenate([samples[i] for i in range(len(samples))])
    assert 60 <= seen.min() <= seen.max() < 90
    assert np.unique(seen).size == 30


def test_a_last_epoch_shuffled_apart_comes_last(make_tokens: MakeTokens) -> None:
    samples = GPTSamples(make_tokens([10] * 10), range(10), 5, 1234, 22)
    whole = samples.epochs.whole_samples
    assert whole == 19
    assert sorted(samples.shuffle_index[:whole].tolist()) == list(range(19))


def test_the_seed_decides_the_order(make_tokens: MakeTokens) -> None:
    tokens = make_tokens([10] * 20)
    orders = [GPTSamples(tokens, range(20), 4, seed).shuffle_index.tolist() for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize("index", [-1, 12, 10**12])
def test_outside_is_an_index_error(make_tokens: MakeTokens, index: int) -> None:
    samples = GPTSamples(make_tokens([49]), range(1), 4, 1)
    assert len(samples) == 12
    with pytest.raises(IndexError, match=f"sample {index} of 12"):
        samples[index]


def test_an_empty_split_is_refused(make_tokens: MakeTokens) -> None:
    with pytest.raises(UserError, match="is empty: the split is cut over its 2 sequences"):
        GPTSamples(make_tokens([10, 10]), range(2, 2), 4, 1)


@pytest.mark.parametrize(("length", "fits"), [(5, True), (4, False), (1, False)])
def test_fewer_tokens_than_one_sample_are_refused(make_tokens: MakeTokens, length: int, fits: bool) -> None:
    tokens = make_tokens([length])
    if fits:
        assert GPTSamples(tokens, range(1), 4, 1, 100)[99].size == 5
        return
    with pytest.raises(UserError, match=rf"has {length} tokens, fewer than one sample of seq_len \+ 1 = 5"):
        GPTSamples(tokens, range(1), 4, 1, 100)


def test_an_order_beyond_memory_is_refused_before_it_is_made(make_tokens: MakeTokens) -> None:
    with pytest.raises(UserError, match=r"epochs of 1 sequences need .* train fewer steps"):
        GPTSamples(make_tokens([8]), range(1), 4, 1, 10**13)


def test_positions_beyond_32_bits() -> None:
    """3 * 2^30 tokens by their lengths alone: the last sample lies where Python's integers say."""
    lengths, seq_len = np.full(3, 2**30, np.int32), 2048
    rows = sample_index(lengths, seq_len)
    count = (3 * 2**30 - 1) // seq_len
    assert len(rows) == count + 1
    for j in (0, 1, count // 2, count - 1, count):
        assert rows[j].tolist() == list(divmod(j * seq_len, 2**30))
    assert rows.min() == 0
    assert rows[:, 1].max() < 2**30


def test_counts_beyond_24_and_32_bits_are_exact() -> None:
    """Where float32 counts one sample short, and where epochs times tokens leaves 32 bits."""
    tokens = 2048 * 5_000_001 + 2
    assert plan_epochs(tokens, 2048, 5_000_001).count == 1
    assert plan_epochs(tokens, 2048, 5_000_002).count == 2
    many = plan_epochs(8, 4, 10**12)
    assert many.count == (4 * 10**12 + 1 + 7) // 8


def test_epochs_are_the_fewest_that_give_the_samples() -> None:
    for tokens in range(5, 40):
        for num_samples in range(1, 60):
            count = plan_epochs(tokens, 4, num_samples).count
            assert count * tokens >= num_samples * 4 + 1 > (count - 1) * tokens
