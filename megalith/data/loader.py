"""Deal the samples of a run to data-parallel ranks, so that every layout sees the same samples in the same step.

B micro_batch_size   S seq_len
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from megalith.config.recipe import Batch
from megalith.data.samples import GPTSamples
from megalith.errors import UserError


@dataclass(frozen=True)
class MicroBatch:
    """What one forward reads.

    tokens_BS, targets_BS: int64; targets are the tokens one further.  loss_mask_BS: bool, False where no loss is taken.
    index: number of the micro-batch within the step, over all ranks; it holds samples
    index * B .. (index + 1) * B - 1 of the step.
    """

    tokens_BS: torch.Tensor
    targets_BS: torch.Tensor
    loss_mask_BS: torch.Tensor
    index: int


class StepLoader:
    """The micro-batches of one data-parallel rank, step by step.

    The position is one number, `consumed_samples` (samples of all ranks since the beginning of the run): it means the
    same in every layout and is all that a resumed run needs.
    """

    def __init__(self, samples: GPTSamples, batch: Batch, data_parallel_rank: int, data_parallel_size: int) -> None:
        """Raises UserError where ranks and micro-batches do not divide the global batch."""
        _check_rank(data_parallel_rank, data_parallel_size)
        if batch.global_batch_size % (batch.micro_batch_size * data_parallel_size):
            raise UserError(
                f"global_batch_size={batch.global_batch_size} is not a multiple of micro_batch_size="
                f"{batch.micro_batch_size} times data_parallel_size={data_parallel_size}"
            )
        self.samples, self.batch = samples, batch
        self._rank, self._size = data_parallel_rank, data_parallel_size
        self.consumed_samples = 0

    def next_step(self) -> list[MicroBatch]:
        """This rank's micro-batches of the next step, in the order in which they run.

        Raises UserError where the order of the run holds no further whole step.
        """
        first, last = self.consumed_samples, self.consumed_samples + self.batch.global_batch_size
        if last > len(self.samples):
            raise UserError(
                f"the step needs samples {first} to {last - 1}, but this run's order holds {len(self.samples)}; "
                "build it with num_samples = train_steps * global_batch_size"
            )
        count = self.batch.num_micro_batches(self._size)
        indices = [m * self._size + self._rank for m in range(count)]
        micro_batches = [_micro_batch(self.samples, first, last, self.batch.micro_batch_size, i) for i in indices]
        self.consumed_samples = last
        return micro_batches

    def seek(self, consumed_samples: int) -> None:
        """Go on as if so many samples, of all ranks, had been consumed. Raises UserError outside the run's order."""
        if not 0 <= consumed_samples <= len(self.samples):
            raise UserError(
                f"consumed_samples={consumed_samples} is outside this run's order of {len(self.samples)} samples"
            )
        self.consumed_samples = consumed_samples


def validation_batches(
    samples: GPTSamples,
    batch: Batch,
    data_parallel_rank: int,
    data_parallel_size: int,
    num_sequences: int | None = None,
) -> Iterator[MicroBatch]:
    """One rank's micro-batches over the first `num_sequences` samples (all there are, where fewer or None).

    Every rank gets the same number of micro-batches, all of the same shape, so that no collective waits for a rank that
    has ended. Rows beyond the last sample are zeros whose loss mask is False; a whole micro-batch may be such rows.
    """
    _check_rank(data_parallel_rank, data_parallel_size)
    last = len(samples) if num_sequences is None else min(num_sequences, len(samples))
    rounds = -(-last // (batch.micro_batch_size * data_parallel_size))
    for m in range(rounds):
        yield _micro_batch(samples, 0, last, batch.micro_batch_size, m * data_parallel_size + data_parallel_rank)


def _micro_batch(samples: GPTSamples, first: int, last: int, micro_batch_size: int, index: int) -> MicroBatch:
    """Micro-batch `index` of the samples first .. last - 1; rows beyond them are masked."""
    window = np.zeros((micro_batch_size, samples.seq_len + 1), dtype=np.int64)
    mask = np.zeros((micro_batch_size, samples.seq_len), dtype=np.bool_)
    start = first + index * micro_batch_size
    for row, sample in enumerate(range(start, min(start + micro_batch_size, last))):
        window[row] = samples[sample]
        mask[row] = True
    tokens, targets = torch.from_numpy(window[:, :-1].copy()), torch.from_numpy(window[:, 1:].copy())
    return MicroBatch(tokens, targets, torch.from_numpy(mask), index)


def _check_rank(rank: int, size: int) -> None:
    if not 0 <= rank < size:
        raise ValueError(f"data_parallel_rank={rank} is not in 0..{size - 1}")
