"""The order in which samples of one token file come: Megatron's, computed without a loop over samples.

Sequences are shuffled, laid end to end and cut every `seq_len` tokens; the cuts are shuffled again. Each sample holds
seq_len + 1 tokens, so neighbours share one. (NVIDIA/Megatron-LM, core/datasets/gpt_dataset.py.)

# P passes  D sequences of a pass  N samples of a pass
A `SampleIndex` has P rows; each row is shuffled by itself, row 0 exactly as Megatron shuffles one epoch. Megatron's own
way with several epochs, where the order depends on the number of samples asked for, is one row of all their sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LAST_EPOCH_SHARE = (
    0.80  # a last epoch that gives fewer of its samples is shuffled apart, so that none of it comes early
)


@dataclass(frozen=True)
class SampleIndex:
    """Order of P passes.

    documents: sequence ids as they are laid end to end (P, D).  ends: tokens up to and with each of them, int64 (P, D).
    shuffle: the sample that is drawn as i-th (P, N). Ids are int32 where they fit.
    """

    documents: np.ndarray
    ends: np.ndarray
    shuffle: np.ndarray

    @property
    def samples_per_row(self) -> int:
        return self.shuffle.shape[1]


@dataclass(frozen=True)
class Epochs:
    """How often Megatron's order goes through its sequences.

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


def epochs_index(
    lengths: np.ndarray, sequences: range, seq_len: int, seed: int, first: int = 0, count: int = 1
) -> SampleIndex:
    """Passes first .. first + count - 1, each shuffled by a generator of its own. lengths: tokens of every sequence.

    Peak memory is the result and 4 bytes a sequence.
    """
    rows, width = (count, len(sequences)), int(lengths[sequences.start : sequences.stop].sum(dtype=np.int64))
    documents = np.empty(rows, id_dtype(sequences.stop))
    ends = np.empty(rows, np.int64)
    shuffle = np.empty((count, samples_of(width, seq_len)), id_dtype(samples_of(width, seq_len)))
    for row in range(count):
        random = generator(seed, first + row)
        documents[row] = np.arange(sequences.start, sequences.stop, dtype=documents.dtype)
        random.shuffle(documents[row])
        ends[row] = lengths[documents[row]]
        np.cumsum(ends[row], out=ends[row])
        shuffle[row] = np.arange(shuffle.shape[1], dtype=shuffle.dtype)
        random.shuffle(shuffle[row])
    return SampleIndex(documents, ends, shuffle)


def megatron_index(
    lengths: np.ndarray, sequences: range, seq_len: int, seed: int, num_samples: int | None
) -> SampleIndex:
    """Megatron's order for `num_samples` samples, as one row: at least so many, the whole of the epochs they need."""
    tokens = int(lengths[sequences.start : sequences.stop].sum(dtype=np.int64))
    epochs, random = plan_epochs(tokens, seq_len, num_samples), generator(seed)
    documents = document_index(np.arange(sequences.start, sequences.stop), epochs, random)
    ends = np.cumsum(lengths[documents], dtype=np.int64)
    shuffle = shuffle_index(samples_of(int(ends[-1]), seq_len), epochs, random)
    return SampleIndex(documents[None], ends[None], shuffle[None])


def document_index(sequences: np.ndarray, epochs: Epochs, random: np.random.RandomState) -> np.ndarray:
    """Sequence ids in the order of Megatron's epochs (epochs.count * len(sequences),)."""

    def shuffled(count: int) -> np.ndarray:
        order = np.tile(sequences.astype(id_dtype(int(sequences[-1]) + 1)), count)
        random.shuffle(order)
        return order

    if epochs.whole_samples is None:
        return shuffled(epochs.count)
    return np.concatenate([shuffled(epochs.count - 1), shuffled(1)])


def shuffle_index(num_samples: int, epochs: Epochs, random: np.random.RandomState) -> np.ndarray:
    """The order in which samples are drawn (num_samples,); those of a last epoch shuffled apart come last."""
    whole = num_samples if epochs.whole_samples is None else epochs.whole_samples
    order = np.arange(num_samples, dtype=id_dtype(num_samples))
    for part in (order[:whole], order[whole:]):
        if part.size:
            random.shuffle(part)
    return order


def locate(ends: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where stream tokens lie: (position in the document index, offset in that sequence), int64.

    For tokens 0, seq_len, 2 * seq_len, ... these are the two columns of Megatron's sample index.
    """
    position = np.searchsorted(ends, tokens, side="right")
    position[tokens == 0] = 0  # by definition, also where the first sequences are empty
    return position, tokens - np.where(position > 0, ends[position - 1], 0)


def samples_of(tokens: int, seq_len: int) -> int:
    """Samples of seq_len + 1 tokens in a stream of `tokens`; neighbours share one token, the tail is left over."""
    return (tokens - 1) // seq_len


def id_dtype(count: int) -> np.dtype:
    """The narrower of int32 and int64 that holds 0 .. count - 1."""
    return np.dtype(np.int32 if count <= 2**31 else np.int64)


def generator(seed: int, epoch: int = 0) -> np.random.RandomState:
    """Megatron's generator for pass 0; one of its own for each further pass, and for seeds beyond its 32 bits."""
    if epoch == 0 and seed < 2**32:
        return np.random.RandomState(seed)
    return np.random.RandomState([seed & 0xFFFFFFFF, seed >> 32, epoch & 0xFFFFFFFF, epoch >> 32])
