"""GPT samples: Megatron's order to the last index, every token used as documented, nothing that overflows."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from megalith.data.index_cache import IndexCache
from megalith.data.order import SampleIndex, epochs_index, generator, id_dtype, locate, megatron_index, plan_epochs
from megalith.data.samples import EpochSamples, GPTSamples
from megalith.errors import UserError
from megalith.tokens.indexed import IndexedTokens

from .conftest import MakeTokens

GOLDEN_FOLDER = Path(__file__).parents[1] / "golden"
GOLDEN = json.loads((GOLDEN_FOLDER / "megatron_order.json").read_text())


def rows(ends: np.ndarray, seq_len: int) -> list[list[int]]:
    """Megatron's sample index of a stream."""
    return np.stack(locate(ends, np.arange((ends[-1] - 1) // seq_len + 1) * seq_len), axis=1).tolist()


def assert_same(one: SampleIndex, other: SampleIndex) -> None:
    for name in ("documents", "ends", "shuffle"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
        assert getattr(one, name).dtype == getattr(other, name).dtype


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("case_")])
def test_golden_order(name: str) -> None:
    case = GOLDEN[name]
    lengths = np.array(case["lens"], np.int32)
    epochs = plan_epochs(int(lengths.sum()), case["S"], case["n"])
    assert epochs.count == case["epochs"]
    assert (epochs.whole_samples is not None) == case["separate_last"]
    index = megatron_index(lengths, range(len(lengths)), case["S"], case["seed"], case["n"])
    assert index.documents.tolist() == [case["document_index"]]
    assert rows(index.ends[0], case["S"]) == case["sample_index"]
    assert index.shuffle.tolist() == [case["shuffle_index"]]
    if case["n"] is None:
        assert_same(index, epochs_index(lengths, range(len(lengths)), case["S"], case["seed"]))


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
    stream = np.concatenate([tokens[i] for i in samples.index.documents[0]])
    order = np.argsort(samples.index.shuffle[0])
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
    assert sorted(samples.index.shuffle[0, :whole].tolist()) == list(range(19))


def test_the_seed_decides_the_order(make_tokens: MakeTokens) -> None:
    tokens = make_tokens([10] * 20)
    orders = [GPTSamples(tokens, range(20), 4, seed).index.shuffle.tolist() for seed in (1, 1, 2)]
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
    index = epochs_index(lengths, range(3), seq_len, 1)
    count = (3 * 2**30 - 1) // seq_len
    assert index.samples_per_row == count
    assert index.ends.tolist() == [[2**30, 2**31, 3 * 2**30]]
    position, offset = locate(index.ends[0], np.arange(count + 1) * seq_len)
    for j in (0, 1, count // 2, count - 1, count):
        assert (position[j], offset[j]) == divmod(j * seq_len, 2**30)
    assert position.min() == offset.min() == 0
    assert offset.max() < 2**30


def test_ids_are_64_bits_wide_from_where_32_do_not_do() -> None:
    assert id_dtype(2**31) == np.int32
    assert id_dtype(2**31 + 1) == np.int64


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


def test_passes_go_on_without_end_and_each_uses_every_sample_once(make_tokens: MakeTokens) -> None:
    """More passes than one index holds, in any order of asking."""
    samples = EpochSamples(make_tokens([80] * 10), range(10), 2, 7)
    per_epoch = samples.samples_per_epoch
    assert (per_epoch, samples.epochs_per_block) == (399, 2)
    orders = []
    for epoch in (0, 4, 1, 2, 3, 0):
        orders.append([samples[epoch * per_epoch + i].tolist() for i in range(0, per_epoch, 1)])
        inputs = np.concatenate([sample[:-1] for sample in orders[-1]])
        assert np.unique(inputs).size == inputs.size == 2 * per_epoch
    assert orders[0] == orders[-1]
    assert len({tuple(map(tuple, order[:9])) for order in orders}) == 5


def test_the_first_pass_is_megatrons_and_a_longer_run_changes_nothing(make_tokens: MakeTokens) -> None:
    tokens = make_tokens([7, 1, 30, 2, 2, 11])
    passes, one = EpochSamples(tokens, range(6), 4, 1234), GPTSamples(tokens, range(6), 4, 1234)
    assert [passes[i].tolist() for i in range(len(one))] == [one[i].tolist() for i in range(len(one))]


def test_a_seed_beyond_megatrons_32_bits_and_each_epoch_have_an_order_of_their_own() -> None:
    draws = {tuple(generator(seed, epoch).randint(0, 1000, 8)) for seed in (0, 1, 2**40, 2**63 - 1) for epoch in (0, 1)}
    assert len(draws) == 8


def test_documents_of_a_sample_are_numbered(make_tokens: MakeTokens) -> None:
    lengths = [3, 0, 7, 6]
    tokens = make_tokens(lengths)
    ends = np.cumsum([length for length in lengths if length])
    samples = GPTSamples(tokens, range(len(tokens)), 5, 1)
    for i in range(len(samples)):
        ids, documents = samples.read(i)
        expected = np.searchsorted(ends, ids, side="right")
        assert np.array_equal(documents == documents[:1], expected == expected[:1])
        assert np.array_equal(np.diff(documents) != 0, np.diff(expected) != 0)
        assert documents[0] == 0 and np.diff(documents).max(initial=0) <= 1


def test_an_index_of_many_documents_takes_few_bytes_each(tmp_path: Path) -> None:
    """Half a million documents, half as many samples: building and caching takes the index and little more."""
    count = 500_000
    lengths, cache = np.full(count, 512, np.int32), IndexCache(tmp_path)
    tracemalloc.start()
    try:
        index = cache.get({}, lambda: epochs_index(lengths, range(count), 1024, 1))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert index.samples_per_row == count // 2 - 1
    assert 14 * count < peak < 20 * count


def test_passes_of_a_tiny_text_go_on_beyond_a_billion(make_tokens: MakeTokens) -> None:
    """One document of 8 tokens: no table grows with the number of samples asked for."""
    samples = EpochSamples(make_tokens([8]), range(1), 4, 1)
    assert samples.samples_per_epoch == 1
    assert samples[10**9 - 1].tolist() == samples[2**33].tolist() == [0, 1, 2, 3, 4]
