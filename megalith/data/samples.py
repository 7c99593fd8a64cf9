"""The order in which a run sees a corpus: Megatron's GPT samples, computed without a loop over samples.

Sequences of a split are shuffled over all epochs of the run, laid end to end and cut every `seq_len` tokens; the cuts
are shuffled again. Each sample holds seq_len + 1 tokens, so neighbours share one: inputs are the first seq_len, targets
the last. Attention crosses documents. (NVIDIA/Megatron-LM, core/datasets/gpt_dataset.py.)

All positions are int64. The order depends on the number of samples asked for, as Megatron's does.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from megalith.errors import UserError
from megalith.tokens.indexed import IndexedTokens
from megalith.units import format_bytes

LAST_EPOCH_SHARE = (
    0.80  # a last epoch that gives fewer of its samples is shuffled apart, so that none of it comes early
)


@dataclass(frozen=True)
class Epochs:
    """How often a run goes through its sequences.

    count: passes.  tokens: tokens of one pass.
    whole_samples: samples of all passes but the last, where that is shuffled apart; None where all are shuffled as one.
    """

    count: int
    tokens: int
    whole_samples: int | None


def plan_epochs(tokens: int, seq_len: int, num_samples: int | None) -> Epochs:
    """Passes over `tokens` tokens that give `num_samples` samples of seq_len + 1 tokens; one pass where it is None."""
    if num_samples is None:
        return Epochs(1, tokens, None)
    count = max(1, -(-(num_samples * seq_len + 1) // tokens))
    if count == 1:
        return Epochs(1, tokens, None)
    whole = ((count - 1) * tokens - 1) // seq_len
    apart = num_samples - whole < int(LAST_EPOCH_SHARE * ((tokens - 1) // seq_len))
    return Epochs(count, tokens, whole if apart else None)


def document_index(sequences: np.ndarray, epochs: Epochs, random: np.random.RandomState) -> np.ndarray:
    """Sequence ids in the order of the run, int64 (epochs.count * len(sequences),)."""

    def shuffled(count: int) -> np.ndarray:
        order = np.tile(sequences.astype(np.int64), count)
        random.shuffle(order)
        return order

    if epochs.whole_samples is None:
        return shuffled(epochs.count)
    return np.concatenate([shuffled(epochs.count - 1), shuffled(1)])


def sample_index(ordered_lengths: np.ndarray, seq_len: int) -> np.ndarray:
    """Where each sample begins, int64 (num_samples + 1, 2): position in the document index, offset in that sequence.

    ordered_lengths: tokens of the sequences in the order of the document index. Row j is stream token j * seq_len; the
    last row is where the last sample ends. Tokens behind it are dropped.
    """
    ends = np.cumsum(ordered_lengths, dtype=np.int64)
    num_samples = (int(ends[-1]) - 1) // seq_len
    starts = np.arange(num_samples + 1, dtype=np.int64) * seq_len
    position = np.searchsorted(ends, starts, side="right")
    position[0] = 0  # by definition, also where the first sequences are empty
    before = np.concatenate(([0], ends))[position]
    return np.stack([position, starts - before], axis=1)


def shuffle_index(num_samples: int, epochs: Epochs, random: np.random.RandomState) -> np.ndarray:
    """The order in which samples are drawn, int64 (num_samples,); those of a last epoch shuffled apart come last."""
    whole = num_samples if epochs.whole_samples is None else epochs.whole_samples
    parts = [np.arange(whole, dtype=np.int64), np.arange(whole, num_samples, dtype=np.int64)]
    for part in parts:
        if part.size:
            random.shuffle(part)
    return np.concatenate(parts)


class GPTSamples:
    """Samples of one split of a token file, in the order of the run.

    len(samples): at least the `num_samples` asked for; the whole of the epochs that they need.
    samples[i]: int64 (seq_len + 1,).
    """

    def __init__(
        self, tokens: IndexedTokens, split_range: range, seq_len: int, seed: int, num_samples: int | None = None
    ) -> None:
        """split_range: sequences, see `splits.split_ranges`.  num_samples: of the whole run; one epoch if None.

        Raises UserError where the split holds fewer than seq_len + 1 tokens, or the order does not fit in memory.
        """
        self.tokens, self.split_range, self.seq_len = tokens, split_range, seq_len
        lengths = np.asarray(tokens.lengths[split_range.start : split_range.stop])
        self.tokens_per_epoch = int(lengths.sum(dtype=np.int64))
        self._check_size()
        self.epochs = plan_epochs(self.tokens_per_epoch, seq_len, num_samples)
        self._check_memory()
        random = np.random.RandomState(seed)
        sequences = np.arange(split_range.start, split_range.stop, dtype=np.int64)
        self.document_index = document_index(sequences, self.epochs, random)
        self.sample_index = sample_index(lengths[self.document_index - split_range.start], seq_len)
        self.shuffle_index = shuffle_index(len(self.sample_index) - 1, self.epochs, random)

    def __len__(self) -> int:
        return len(self.shuffle_index)

    def __getitem__(self, i: int) -> np.ndarray:
        """Tokens of the i-th sample of the run, int64 (seq_len + 1,). Raises IndexError outside 0..len-1."""
        if not 0 <= i < len(self):
            raise IndexError(f"sample {i} of {len(self)}")
        row = int(self.shuffle_index[i])
        position, offset = (int(v) for v in self.sample_index[row])
        sample = np.empty(self.seq_len + 1, dtype=np.int64)
        filled = 0
        while filled < len(sample):
            sequence = int(self.document_index[position])
            take = min(int(self.tokens.lengths[sequence]) - offset, len(sample) - filled)
            sample[filled : filled + take] = self.tokens.read(sequence, offset, take)
            filled, position, offset = filled + take, position + 1, 0
        return sample

    def _check_size(self) -> None:
        if not len(self.split_range):
            raise UserError(
                f"this split of {self.tokens.prefix} is empty: the split is cut over its {len(self.tokens)} sequences "
                "(documents); give the split a larger share, or tokenize more documents"
            )
        if self.tokens_per_epoch < self.seq_len + 1:
            raise UserError(
                f"this split of {self.tokens.prefix} has {self.tokens_per_epoch} tokens, fewer than one sample of "
                f"seq_len + 1 = {self.seq_len + 1}; choose a shorter seq_len, a larger share, or more text"
            )

    def _check_memory(self) -> None:
        entries = self.epochs.count * len(self.split_range)
        samples = self.epochs.count * self.tokens_per_epoch // self.seq_len
        needed = 3 * 8 * entries + 6 * 8 * samples  # the indices, and what is alive while they are made
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if needed > available:
            raise UserError(
                f"{self.epochs.count} epochs of {len(self.split_range)} sequences need {format_bytes(needed)} for "
                f"their order, and this machine has {format_bytes(available)}; train fewer steps, or bring more text"
            )
