"""Loader: the same samples in every layout, one number to resume from, and ranks that never wait for each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from itertools import chain

import numpy as np
import pytest
import torch

from megalith.config.recipe import Batch
from megalith.data.blend import Blend, Drawn
from megalith.data.loader import Boundaries, MicroBatch, StepLoader, validation_batches
from megalith.data.samples import EpochSamples, GPTSamples
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


def ids_of(dealt: list[list[MicroBatch]]) -> list[list[int]]:
    """Tokens of all ranks' rows of one step, in the order of the step's samples."""
    return rows_of(list(chain(*dealt)))


def run_in_pieces(make: Callable[[int, int, int], list[StepLoader]], steps: list[int]) -> list[list[list[int]]]:
    """Rows of each step of a run that is stopped and resumed after each of `steps` steps, in ever other layouts."""
    consumed, position, seen = 0, None, []
    for count, (ranks, micro_batch_size, workers) in zip(steps, LAYOUTS * len(steps), strict=False):
        loaders = make(ranks, micro_batch_size, workers)
        if position is not None:
            for loader in loaders:
                loader.seek(consumed, Drawn(**json.loads(json.dumps(asdict(position)))))
        seen += [ids_of([loader.next_step() for loader in loaders]) for _ in range(count)]
        consumed, position = loaders[-1].consumed_samples, loaders[-1].position
    return seen


LAYOUTS = [(1, 2, 0), (2, 2, 1), (3, 2, 3), (1, 1, 3), (6, 1, 0), (2, 3, 1)]  # ranks, micro-batch size, workers


@pytest.mark.parametrize("first", range(1, 9))
@pytest.mark.parametrize("blended", [False, True])
def test_a_run_resumed_twice_at_any_boundary_sees_what_an_unbroken_one_does(
    make_tokens: MakeTokens, first: int, blended: bool
) -> None:
    """10 samples an epoch, 12 a step in up to 12 micro-batches: every step crosses the end of an epoch."""
    files = [make_tokens([7, 30, 2, 2])] + ([make_tokens([90, 31])] if blended else [])
    sources = [EpochSamples(tokens, range(len(tokens)), SEQ_LEN, 3) for tokens in files]

    def make(ranks: int, micro_batch_size: int, workers: int) -> list[StepLoader]:
        batch = Batch(SEQ_LEN, micro_batch_size, 12)
        blends = [Blend(sources, [3, 1][: len(sources)]) for _ in range(ranks)]
        return [StepLoader(blend, batch, rank, ranks, workers) for rank, blend in enumerate(blends)]

    unbroken = run_in_pieces(make, [12])
    assert run_in_pieces(make, [first, 2, 12 - first - 2]) == unbroken
    if not blended:
        rows = [tuple(row) for step in unbroken for row in step]
        assert all(len(set(rows[i : i + 10])) == 10 for i in range(0, len(rows) - 10, 10))


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("steps", [0, 1, 24, 25, 26])
def test_100_samples_are_dealt_once_an_epoch(make_tokens: MakeTokens, workers: int, steps: int) -> None:
    samples = EpochSamples(make_tokens([401]), range(1), SEQ_LEN, 3)

    def loader() -> StepLoader:
        return StepLoader(samples, Batch(SEQ_LEN, 4, 4), 0, 1, workers)

    first = loader()
    seen = [first.next_step() for _ in range(steps)]
    second = loader()
    second.seek(first.consumed_samples, first.position)
    seen += [second.next_step() for _ in range(50 - steps)]
    rows = [tuple(row) for step in seen for row in rows_of(step)]
    assert len(set(rows[:100])) == len(set(rows[100:])) == 100


@pytest.mark.parametrize("workers", [1, 3])
def test_reading_ahead_does_not_move_the_position(samples: GPTSamples, workers: int) -> None:
    loader = StepLoader(samples, Batch(SEQ_LEN, 2, 12), 0, 1, workers)
    loader.next_step()
    assert loader.consumed_samples == 12
    assert sum(loader.position.drawn.values()) == 12


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_nothing_is_read_beyond_the_end_of_the_run(samples: GPTSamples, workers: int) -> None:
    loader = StepLoader(samples, Batch(SEQ_LEN, 2, 12), 0, 1, workers, num_samples=36)
    for step in range(1, 4):
        loader.next_step()
        assert loader.blend.num_drawn == min(12 * (step + workers), 36)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_what_reading_raises_is_raised_in_that_step(samples: GPTSamples, workers: int, monkeypatch) -> None:
    loader = StepLoader(samples, Batch(SEQ_LEN, 2, 2), 0, 1, workers)
    read = samples.read

    def fails_from_4_on(k: int) -> tuple[np.ndarray, np.ndarray]:
        if k >= 4:
            raise OSError(5, "Input/output error")
        return read(k)

    monkeypatch.setattr(samples, "read", fails_from_4_on)
    loader.next_step()
    loader.next_step()
    with pytest.raises(OSError, match="Input/output error"):
        loader.next_step()


def test_unequal_ends_keep_no_rank_waiting(make_tokens: MakeTokens) -> None:
    """103 samples an epoch, 2 ranks with 3 workers, 2 epochs: as many steps on both, all samples of one permutation."""
    samples = [EpochSamples(make_tokens([413]), range(1), SEQ_LEN, 3) for _ in range(2)]
    loaders = [StepLoader(s, Batch(SEQ_LEN, 1, 2), rank, 2, 3) for rank, s in enumerate(samples)]
    rows = [row for _ in range(103) for row in ids_of([loader.next_step() for loader in loaders])]
    assert len(set(map(tuple, rows[:103]))) == len(set(map(tuple, rows[103:]))) == 103


def test_documents_ride_along_where_they_bound_attention(make_tokens: MakeTokens) -> None:
    tokens = make_tokens([3, 7, 6])
    samples, batch = GPTSamples(tokens, range(3), 15, 3), Batch(15, 1, 1)
    loaders = [StepLoader(samples, batch, 0, 1, boundaries=Boundaries(documents=on)) for on in (False, True)]
    without, with_them = (loader.next_step()[0] for loader in loaders)
    assert without.documents_BS is None
    ends = np.cumsum([3, 7, 6])
    expected = np.searchsorted(ends, with_them.tokens_BS.numpy(), side="right")
    assert with_them.documents_BS is not None and with_them.documents_BS.dtype == torch.int64
    changes = with_them.documents_BS.diff() != 0
    assert np.array_equal(changes.numpy(), np.diff(expected) != 0)


def test_no_loss_is_taken_from_the_token_that_ends_a_document(make_tokens: MakeTokens) -> None:
    samples, batch, after_7 = (
        GPTSamples(make_tokens([33]), range(1), 8, 3),
        Batch(8, 4, 4),
        Boundaries(unscored_after=7),
    )
    (trained,) = StepLoader(samples, batch, 0, 1, boundaries=after_7).next_step()
    (validated,) = validation_batches(samples, batch, 0, 1, boundaries=after_7)
    for one in (trained, validated):
        assert torch.equal(one.loss_mask_BS, one.tokens_BS != 7)
        assert (~one.loss_mask_BS).sum() == 1 and one.documents_BS is None
