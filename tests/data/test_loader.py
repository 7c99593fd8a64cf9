"""Loader: the same samples in every layout, one number to resume from, and ranks that never wait for each other."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch

from megalith.config.recipe import Batch
from megalith.data.loader import MicroBatch, StepLoader, validation_batches
from megalith.data.samples import GPTSamples
from megalith.errors import UserError

from .conftest import MakeTokens

SEQ_LEN = 4


@pytest.fixture
def samples(make_tokens: MakeTokens) -> GPTSamples:
    return GPTSamples(make_tokens([7, 30, 2, 51, 11]), range(5), SEQ_LEN, 3, 48)


def rows_of(micro_batches: list[MicroBatch]) -> list[list[int]]:
    """Tokens and last target of each row, in the order of the micro-batches' index."""
    rows = []
    for batch in sorted(micro_batches, key=lambda b: b.index):
        assert torch.equal(batch.tokens_BS[:, 1:], batch.targets_BS[:, :-1])
        rows += torch.cat([batch.tokens_BS, batch.targets_BS[:, -1:]], dim=1).tolist()
    return rows


@pytest.mark.parametrize("size", [1, 2, 3, 6])
@pytest.mark.parametrize("micro_batch_size", [1, 2])
def test_every_layout_deals_the_same_samples(samples: GPTSamples, size: int, micro_batch_size: int) -> None:
    batch = Batch(SEQ_LEN, micro_batch_size, global_batch_size=12)
    loaders = [StepLoader(samples, batch, rank, size) for rank in range(size)]
    for step in range(4):
        dealt = [loader.next_step() for loader in loaders]
        assert {len(d) for d in dealt} == {12 // (micro_batch_size * size)}
        assert rows_of(list(chain(*dealt))) == [samples[i].tolist() for i in range(12 * step, 12 * step + 12)]
        assert {loader.consumed_samples for loader in loaders} == {12 * step + 12}


def test_index_is_the_number_within_the_step_over_all_ranks(samples: GPTSamples) -> None:
    loader = StepLoader(samples, Batch(SEQ_LEN, 2, 12), 1, 3)
    for _ in range(2):
        assert [b.index for b in loader.next_step()] == [1, 4]


def test_tensors_are_what_a_forward_reads(samples: GPTSamples) -> None:
    first = StepLoader(samples, Batch(SEQ_LEN, 3, 12), 0, 1).next_step()[0]
    assert first.tokens_BS.shape == first.targets_BS.shape == first.loss_mask_BS.shape == (3, SEQ_LEN)
    assert (first.tokens_BS.dtype, first.targets_BS.dtype, first.loss_mask_BS.dtype) == (
        torch.int64,
        torch.int64,
        torch.bool,
    )
    assert first.tokens_BS.is_contiguous() and first.targets_BS.is_contiguous()
    assert first.loss_mask_BS.all()


@pytest.mark.parametrize("stop", range(12))
def test_seek_goes_on_where_another_run_stopped(samples: GPTSamples, stop: int) -> None:
    batch = Batch(SEQ_LEN, 2, 4)
    whole = StepLoader(samples, batch, 0, 1)
    expected = [rows_of(whole.next_step()) for _ in range(12)]
    first = StepLoader(samples, batch, 0, 1)
    seen = [rows_of(first.next_step()) for _ in range(stop)]
    resumed = [StepLoader(samples, batch, rank, 2) for rank in range(2)]  # in another layout
    for loader in resumed:
        loader.seek(first.consumed_samples)
    seen += [rows_of(list(chain(*(loader.next_step() for loader in resumed)))) for _ in range(12 - stop)]
    assert seen == expected


def test_the_end_of_the_order_is_an_error(samples: GPTSamples) -> None:
    loader = StepLoader(samples, Batch(SEQ_LEN, 2, 12), 0, 1)
    loader.seek(len(samples) - 11)
    with pytest.raises(UserError, match=rf"needs sample {len(samples)} of .*, but its order holds {len(samples)}"):
        loader.next_step()
    assert loader.consumed_samples == len(samples) - 11


def test_seek_outside_the_order_is_refused(samples: GPTSamples) -> None:
    with pytest.raises(UserError, match="consumed_samples=-1 is outside"):
        StepLoader(samples, Batch(SEQ_LEN, 2, 12), 0, 1).seek(-1)
    with pytest.raises(UserError, match=f"its order holds {len(samples)}"):
        StepLoader(samples, Batch(SEQ_LEN, 2, 12), 0, 1).seek(10**6)


def test_a_batch_that_does_not_divide_is_refused(samples: GPTSamples) -> None:
    with pytest.raises(
        UserError, match="global_batch_size=12 is not a multiple of micro_batch_size=2 times data_parallel_size=4"
    ):
        StepLoader(samples, Batch(SEQ_LEN, 2, 12), 0, 4)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize(("count", "used"), [(10, 10), (1, 1), (12, 12), (None, 50), (10**6, 50)])
def test_validation_counts_each_sample_once_and_ranks_alike(
    make_tokens: MakeTokens, size: int, count: int | None, used: int
) -> None:
    samples = GPTSamples(make_tokens([201]), range(1), SEQ_LEN, 3)
    batch = Batch(SEQ_LEN, 2, 12)
    dealt = [list(validation_batches(samples, batch, rank, size, count)) for rank in range(size)]
    assert len({len(d) for d in dealt}) == 1
    everything = sorted(chain(*dealt), key=lambda b: b.index)
    assert [b.index for b in everything] == list(range(len(everything)))
    assert {tuple(b.tokens_BS.shape) for b in everything} == {(2, SEQ_LEN)}
    scored = torch.cat([b.targets_BS[b.loss_mask_BS] for b in everything])
    assert np.array_equal(scored.numpy(), np.concatenate([samples[i][1:] for i in range(used)]))
    missing = torch.cat([b.tokens_BS[~b.loss_mask_BS.any(dim=1)] for b in everything])
    assert len(missing) == 2 * len(everything) - used
    assert missing.eq(0).all()


def test_a_rank_outside_its_size_is_refused(samples: GPTSamples) -> None:
    with pytest.raises(ValueError, match=r"data_parallel_rank=2 is not in 0\.\.1"):
        StepLoader(samples, Batch(SEQ_LEN, 2, 12), 2, 2)
