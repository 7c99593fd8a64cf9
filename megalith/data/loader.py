"""Deal the samples of a run to data-parallel ranks, so that every layout sees the same samples in the same step.

B micro_batch_size   S seq_len
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf

import numpy as np
import torch

from megalith.config.recipe import Batch
from megalith.data.blend import Blend, Drawn
from megalith.data.samples import GPTSamples, Samples
from megalith.errors import UserError

ReadSample = Callable[[], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class MicroBatch:
    """What one forward reads.

    tokens_BS, targets_BS: int64; targets are the tokens one further.  loss_mask_BS: bool, False where no loss is taken.
    index: number of the micro-batch within the step, over all ranks; it holds samples
    index * B .. (index + 1) * B - 1 of the step.
    documents_BS: int64, for each token the number of its document in the row, where documents do not see each other.
    """

    tokens_BS: torch.Tensor
    targets_BS: torch.Tensor
    loss_mask_BS: torch.Tensor
    index: int
    documents_BS: torch.Tensor | None = None

    def on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Tokens, targets, loss mask and documents on `device`."""
        tokens, targets, mask = (
            x.to(device, non_blocking=True) for x in (self.tokens_BS, self.targets_BS, self.loss_mask_BS)
        )
        documents = self.documents_BS
        return tokens, targets, mask, None if documents is None else documents.to(device, non_blocking=True)


@dataclass(frozen=True)
class Boundaries:
    """What the end of a document means for a forward.

    documents: whether they are told apart, see `MicroBatch.documents_BS`.
    unscored_after: id of an input token from which no prediction is scored; Megatron's eod_mask_loss.
    """

    documents: bool = False
    unscored_after: int | None = None


NO_BOUNDARIES = Boundaries()


@dataclass(frozen=True)
class _Step:
    """Micro-batches of a step and where the run stands behind it."""

    micro_batches: Future[list[MicroBatch]] | list[MicroBatch]
    consumed_samples: int
    position: Drawn


class StepLoader:
    """The micro-batches of one data-parallel rank, step by step, read ahead by threads.

    `consumed_samples` (of all ranks since the beginning of the run) and `position` are those of the last step given
    out, whatever was read ahead: they mean the same in every layout and are all that a resumed run needs.
    """

    def __init__(
        self,
        samples: Blend | Samples,
        batch: Batch,
        data_parallel_rank: int,
        data_parallel_size: int,
        num_workers: int = 0,
        boundaries: Boundaries = NO_BOUNDARIES,
        num_samples: int | None = None,
    ) -> None:
        """num_workers: threads, and steps read ahead; 0 reads a step when it is asked for.  num_samples: of the whole
        run, beyond which nothing is read ahead.

        Raises UserError where ranks and micro-batches do not divide the global batch.
        """
        _check_rank(data_parallel_rank, data_parallel_size)
        if batch.global_batch_size % (batch.micro_batch_size * data_parallel_size):
            raise UserError(
                f"global_batch_size={batch.global_batch_size} is not a multiple of micro_batch_size="
                f"{batch.micro_batch_size} times data_parallel_size={data_parallel_size}"
            )
        self.blend = samples if isinstance(samples, Blend) else Blend([samples], [1.0])
        self.batch, self.boundaries = batch, boundaries
        self._rank, self._size = data_parallel_rank, data_parallel_size
        self._num_workers, self._num_samples = num_workers, inf if num_samples is None else num_samples
        self._workers = ThreadPoolExecutor(num_workers, "data") if num_workers else None
        self._ahead: deque[_Step] = deque()
        self.consumed_samples, self.position = 0, self.blend.position

    def next_step(self) -> list[MicroBatch]:
        """This rank's micro-batches of the next step, in the order in which they run.

        Raises UserError where a source of finite order ends, and what reading it raised.
        """
        step = self._ahead.popleft() if self._ahead else self._start()
        self.consumed_samples, self.position = step.consumed_samples, step.position
        with suppress(UserError):  # the end of a finite order is said when that step is asked for
            while len(self._ahead) < self._num_workers and self._read_to < self._num_samples:
                self._ahead.append(self._start())
        return step.micro_batches if isinstance(step.micro_batches, list) else step.micro_batches.result()

    def seek(self, consumed_samples: int, position: Drawn | None = None) -> None:
        """Go on as if so many samples, of all ranks, had been consumed, standing at `position` in the sources.

        Without a position the blend is taken to have had its present weights from the beginning. Raises UserError
        outside the run's order.
        """
        if consumed_samples < 0:
            raise UserError(f"consumed_samples={consumed_samples} is outside this run's order, which begins with 0")
        self._ahead.clear()
        self.blend.go_on(position)
        if position is None:
            self.blend.draw(consumed_samples)
        self.consumed_samples, self.position = consumed_samples, self.blend.position

    @property
    def _read_to(self) -> int:
        """Samples of the run that were given out or are read ahead."""
        return self._ahead[-1].consumed_samples if self._ahead else self.consumed_samples

    def _start(self) -> _Step:
        """Draw the next step and begin to read it."""
        consumed = self._read_to
        draws = self.blend.draw(self.batch.global_batch_size)
        readers = [
            partial(self.blend.sources[source].read, sample)
            for source, sample in zip(draws.source.tolist(), draws.sample.tolist(), strict=True)
        ]

        def read() -> list[MicroBatch]:
            B, count = self.batch.micro_batch_size, self.batch.num_micro_batches(self._size)
            indices = [m * self._size + self._rank for m in range(count)]
            return [
                micro_batch(readers[i * B : (i + 1) * B], B, self.blend.seq_len, i, self.boundaries) for i in indices
            ]

        micro_batches = self._workers.submit(read) if self._workers else read()
        return _Step(micro_batches, consumed + self.batch.global_batch_size, self.blend.position)


def validation_batches(
    samples: GPTSamples,
    batch: Batch,
    data_parallel_rank: int,
    data_parallel_size: int,
    num_sequences: int | None = None,
    boundaries: Boundaries = NO_BOUNDARIES,
) -> Iterator[MicroBatch]:
    """One rank's micro-batches over the first `num_sequences` samples (all there are, where fewer or None).

    Every rank gets the same number of micro-batches, all of the same shape, so that no collective waits for a rank that
    has ended. Rows beyond the last sample are zeros whose loss mask is False; a whole micro-batch may be such rows.
    """
    _check_rank(data_parallel_rank, data_parallel_size)
    last = len(samples) if num_sequences is None else min(num_sequences, len(samples))
    B = batch.micro_batch_size
    for m in range(-(-last // (B * data_parallel_size))):
        index = m * data_parallel_size + data_parallel_rank
        readers = [partial(samples.read, i) for i in range(index * B, min((index + 1) * B, last))]
        yield micro_batch(readers, B, samples.seq_len, index, boundaries)


def micro_batch(
    readers: Sequence[ReadSample], micro_batch_size: int, seq_len: int, index: int, boundaries: Boundaries
) -> MicroBatch:
    """Micro-batch `index` with one row for each of `readers`; rows beyond them are masked."""
    tokens, documents = np.zeros((2, micro_batch_size, seq_len + 1), dtype=np.int64)
    mask = np.zeros((micro_batch_size, seq_len), dtype=np.bool_)
    for row, read in enumerate(readers):
        tokens[row], documents[row] = read()
        mask[row] = True if boundaries.unscored_after is None else tokens[row, :-1] != boundaries.unscored_after
    inputs, targets, documents = (
        torch.from_numpy(x.copy()) for x in (tokens[:, :-1], tokens[:, 1:], documents[:, :-1])
    )
    return MicroBatch(inputs, targets, torch.from_numpy(mask), index, documents if boundaries.documents else None)


def _check_rank(rank: int, size: int) -> None:
    if not 0 <= rank < size:
        raise ValueError(f"data_parallel_rank={rank} is not in 0..{size - 1}")
