"""Which source each sample of the run comes from: several token files mixed by weight, resumable after any sample.

The next source follows from how often each was drawn since the weights took effect, so that its share of the first n
samples is within 1/n of its weight for every n. Nothing depends on the batch or the number of ranks. A source goes on
with its own next sample whatever happens to the weights: none is lost and none is repeated within a pass over it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from megalith.config.recipe import SampleOrder
from megalith.data.samples import Samples
from megalith.errors import UserError


@dataclass(frozen=True)
class Draws:
    """Where the samples of a stretch of the run come from: number of the source, number of the sample in it (n,)."""

    source: np.ndarray
    sample: np.ndarray


@dataclass(frozen=True)
class Drawn:
    """How far a run is into its sources, by their digest: what a checkpoint keeps.

    weights: of the blend as it is.  drawn: samples of each source so far, of sources that left the blend too.
    before: samples of each that were drawn before these weights.
    """

    weights: Mapping[str, float]
    drawn: Mapping[str, int]
    before: Mapping[str, int]


class Blend:
    """Sources with their weights, and the position between them. Only `draw` and `go_on` move it."""

    def __init__(
        self, sources: Sequence[Samples], weights: Sequence[float], order: SampleOrder = SampleOrder.EPOCHS
    ) -> None:
        """Weights are relative. Raises UserError where two sources are the same tokens, which would come twice."""
        self.sources, self.order = tuple(sources), order
        self.weights = np.asarray(weights, np.float64) / sum(weights)
        self.keys = tuple(source.tokens.digest for source in sources)
        for i, key in enumerate(self.keys):
            if key in self.keys[:i]:
                first = self.sources[self.keys.index(key)].name
                raise UserError(f"{first} and {sources[i].name} hold the same tokens; name one of them, once")
        self._drawn = dict.fromkeys(self.keys, 0)
        self._before = dict(self._drawn)

    @property
    def seq_len(self) -> int:
        return self.sources[0].seq_len

    @property
    def position(self) -> Drawn:
        """What `go_on` takes to continue from here."""
        return Drawn(dict(zip(self.keys, self.weights.tolist(), strict=True)), dict(self._drawn), dict(self._before))

    @property
    def num_drawn(self) -> int:
        """Samples drawn since the beginning of the run, of sources that left the blend too."""
        return sum(self._drawn.values())

    def go_on(self, position: Drawn | None) -> None:
        """Continue from a position of this blend, or of one with other weights or sources; None is the beginning.

        With other weights the shares count from here.
        """
        fresh = dict.fromkeys(self.keys, 0)
        same = position is not None and dict(position.weights) == dict(self.position.weights)
        self._drawn = fresh | dict(position.drawn if position else {})
        self._before = fresh | dict(position.before) if position and same else dict(self._drawn)

    def draw(self, count: int) -> Draws:
        """The next `count` samples of the run. Raises UserError where a source of finite order ends before."""
        start = np.array([self._drawn[key] for key in self.keys], np.int64)
        counts = start - np.array([self._before[key] for key in self.keys])
        source = _RULES[self.order](self.weights, counts, count)
        sample = np.empty(count, np.int64)
        for k in np.unique(source):
            mine = source == k
            sample[mine] = start[k] + np.arange(np.count_nonzero(mine))
        draws = Draws(source, sample)
        self._check_end(draws)
        for key, more in zip(self.keys, np.bincount(source, minlength=len(self.keys)).tolist(), strict=True):
            self._drawn[key] += more
        return draws

    def epochs_by(self, num_samples: int) -> list[dict[str, Any]]:
        """For each source what it will have given when the run has `num_samples`: share, samples, epochs."""
        rest = max(0, num_samples - self.num_drawn)
        return [
            {
                "name": source.name,
                "share": share,
                "samples": (samples := self._drawn[key] + round(share * rest)),
                "samples_per_epoch": source.samples_per_epoch,
                "epochs": samples / source.samples_per_epoch,
            }
            for source, key, share in zip(self.sources, self.keys, self.weights.tolist(), strict=True)
        ]

    def _check_end(self, draws: Draws) -> None:
        for k, source in enumerate(self.sources):
            mine = draws.sample[draws.source == k]
            if mine.size and source.num_samples is not None and mine[-1] >= source.num_samples:
                raise UserError(
                    f"the step needs sample {mine[-1]} of {source.name}, but its order holds {source.num_samples}; "
                    "data.order=megatron makes it for train_steps * global_batch_size samples"
                )


def draw_in_time(weights: np.ndarray, counts: np.ndarray, count: int) -> np.ndarray:
    """Sources of the next `count` samples, int16 (count,), after `counts` of each were drawn.

    R. Tijdeman, "The chairman assignment problem" (1980): among the sources that are due, the one whose time runs out
    first. Each count stays within 1 - 1 / (2K - 2) of weight * samples for K sources; no rule does better.
    """
    drawn_from = np.flatnonzero(weights).tolist()
    slack = 1 / (2 * len(drawn_from) - 2) if len(drawn_from) > 1 else 0.0
    share, count_of = weights.tolist(), counts.tolist()

    def due(k: int) -> tuple[float, int]:
        """From which sample of the run on source k may be drawn again."""
        return (count_of[k] + slack - 1e-9) / share[k], k

    waiting, ready = [due(k) for k in drawn_from], []
    heapify(waiting)
    start, chosen = sum(count_of), np.empty(count, np.int16)
    for i in range(count):
        while waiting and waiting[0][0] <= start + i + 1:
            k = heappop(waiting)[1]
            heappush(ready, ((count_of[k] + 1 - slack) / share[k], k))  # with the sample by which it must be drawn
        k = chosen[i] = heappop(ready or waiting)[1]
        count_of[k] += 1
        heappush(waiting, due(k))
    return chosen


def draw_as_megatron(weights: np.ndarray, counts: np.ndarray, count: int) -> np.ndarray:
    """Megatron's rule: the source that lags most. Small weights come early, and a source may lag by more than one."""
    chosen, counts = np.empty(count, np.int16), counts.astype(np.float64)
    start = int(counts.sum())
    for i in range(count):
        k = chosen[i] = np.argmax(weights * max(start + i, 1) - counts)
        counts[k] += 1
    return chosen


_RULES = {SampleOrder.EPOCHS: draw_in_time, SampleOrder.MEGATRON: draw_as_megatron}
