"""Samples of one token file by their number: windows of seq_len + 1 tokens, of which inputs are the first seq_len and
targets the last.

`GPTSamples` is Megatron's order for a given number of samples. `EpochSamples` goes on without end, pass after pass,
each in Megatron's order for one epoch: sample k is the same however long the run, whatever its batches and other data.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np

from megalith.data.index_cache import IndexCache
from megalith.data.order import SampleIndex, epochs_index, locate, megatron_index, plan_epochs, samples_of
from megalith.errors import UserError
from megalith.tokens.indexed import IndexedTokens
from megalith.units import format_bytes

_LEAST_BLOCK = 1 << 10  # sequences or samples in one index, so that short passes share a file of the cache


class Samples:
    """What both orders share. samples[k]: int64 (seq_len + 1,).

    name: what the samples are called in messages.  samples_per_epoch: of one pass.  num_samples: None is without end.
    """

    num_samples: int | None = None

    def __init__(
        self, tokens: IndexedTokens, split_range: range, seq_len: int, seed: int, cache: IndexCache | None = None
    ) -> None:
        """split_range: sequences, see `splits.split_ranges`.

        Raises UserError where the split holds fewer than seq_len + 1 tokens.
        """
        self.tokens, self.split_range, self.seq_len, self.seed = tokens, split_range, seq_len, seed
        self.name = tokens.prefix
        lengths = np.asarray(tokens.lengths[split_range.start : split_range.stop])
        self.tokens_per_epoch = int(lengths.sum(dtype=np.int64))
        self._check_size()
        self.samples_per_epoch = samples_of(self.tokens_per_epoch, seq_len)
        self._cache = cache

    def __getitem__(self, k: int) -> np.ndarray:
        """Tokens of sample k, int64 (seq_len + 1,). Raises IndexError where there is none."""
        return self.read(k)[0]

    def read(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of sample k, and for each the number of its document within the sample; both int64 (seq_len + 1,)."""
        index, row, i = self._place(k)
        start = np.array([int(index.shuffle[row, i]) * self.seq_len])
        position, offset = (int(value[0]) for value in locate(index.ends[row], start))
        sample, documents = np.empty((2, self.seq_len + 1), dtype=np.int64)
        filled = number = 0
        while filled < len(sample):
            sequence = int(index.documents[row, position])
            take = min(int(self.tokens.lengths[sequence]) - offset, len(sample) - filled)
            sample[filled : filled + take] = self.tokens.read(sequence, offset, take)
            documents[filled : filled + take] = number
            filled, position, offset, number = filled + take, position + 1, 0, number + (take > 0)
        return sample, documents

    def _place(self, k: int) -> tuple[SampleIndex, int, int]:
        """The index that holds sample k, its row there, and the sample's number in that row."""
        raise NotImplementedError

    def _kept(self, order: dict[str, Any], build: Any) -> SampleIndex:
        """The index that `build` makes, from the cache where there is one."""
        if self._cache is None:
            return build()
        split = [self.split_range.start, self.split_range.stop]
        key = {**self.tokens.stamp, "sequences": split, "seq_len": self.seq_len, "seed": self.seed, **order}
        return self._cache.get(key, build)

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


class GPTSamples(Samples):
    """Megatron's order; len(samples) is the whole of the epochs that `num_samples` need."""

    def __init__(
        self,
        tokens: IndexedTokens,
        split_range: range,
        seq_len: int,
        seed: int,
        num_samples: int | None = None,
        cache: IndexCache | None = None,
    ) -> None:
        """num_samples: of the whole run; one epoch if None. Raises UserError where the order does not fit in memory."""
        super().__init__(tokens, split_range, seq_len, seed, cache)
        self.epochs = plan_epochs(self.tokens_per_epoch, seq_len, num_samples)
        self._check_memory()
        self.index = self._kept(
            {"order": "megatron", "num_samples": num_samples},
            lambda: megatron_index(tokens.lengths, split_range, seq_len, seed, num_samples),
        )
        self.num_samples = len(self)

    def __len__(self) -> int:
        return self.index.samples_per_row

    def _place(self, k: int) -> tuple[SampleIndex, int, int]:
        if not 0 <= k < len(self):
            raise IndexError(f"sample {k} of {len(self)}")
        return self.index, 0, k

    def _check_memory(self) -> None:
        entries = self.epochs.count * len(self.split_range)
        samples = self.epochs.count * self.tokens_per_epoch // self.seq_len
        needed = 24 * entries + 8 * samples  # at most, while they are made
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if needed > available:
            raise UserError(
                f"{self.epochs.count} epochs of {len(self.split_range)} sequences need {format_bytes(needed)} for "
                f"their order, and this machine has {format_bytes(available)}; train fewer steps, bring more text, or "
                "choose data.order=epochs"
            )


class EpochSamples(Samples):
    """Pass after pass without end, each shuffled by itself. The indices of the two passes in use are at hand."""

    def __init__(
        self, tokens: IndexedTokens, split_range: range, seq_len: int, seed: int, cache: IndexCache | None = None
    ) -> None:
        super().__init__(tokens, split_range, seq_len, seed, cache)
        self.epochs_per_block = max(1, _LEAST_BLOCK // max(len(split_range), self.samples_per_epoch))
        self._blocks: dict[int, SampleIndex] = {}
        self._building = threading.Lock()

    def prepare(self, num_samples: int) -> None:
        """Have the indices of the first `num_samples` samples in the cache."""
        for first in range(0, num_samples, self.epochs_per_block * self.samples_per_epoch):
            self._place(first)

    def _place(self, k: int) -> tuple[SampleIndex, int, int]:
        if k < 0:
            raise IndexError(f"sample {k}; they are numbered from 0")
        epoch, i = divmod(k, self.samples_per_epoch)
        block, row = divmod(epoch, self.epochs_per_block)
        return self._block(block), row, i

    def _block(self, block: int) -> SampleIndex:
        with self._building:
            if block not in self._blocks:
                first, count = block * self.epochs_per_block, self.epochs_per_block
                lengths, at = self.tokens.lengths, (self.split_range, self.seq_len, self.seed, first, count)
                order = {"order": "epochs", "first_epoch": first, "epochs": count}
                self._blocks[block] = self._kept(order, lambda: epochs_index(lengths, *at))
                while len(self._blocks) > 2:
                    del self._blocks[max(self._blocks, key=lambda other: abs(other - block))]
            return self._blocks[block]
