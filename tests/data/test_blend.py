"""Blends: shares within one sample at every prefix, Megatron's rule as recorded, and no sample lost or met twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from megalith.config.recipe import SampleOrder
from megalith.data.blend import Blend, Drawn, draw_as_megatron, draw_in_time
from megalith.data.samples import EpochSamples, GPTSamples, Samples
from megalith.errors import UserError
from megalith.tokens.indexed import IndexedTokens
from megalith.tokens.writer import IndexedWriter

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "megatron_order.json").read_text())
MakeSource = Callable[..., Samples]


@pytest.fixture
def make_source(tmp_path: Path) -> MakeSource:
    """Samples of 4 tokens of a file of one document, `samples` in one epoch."""

    def make(name: str, samples: int, num_samples: int | None = None) -> Samples:
        with IndexedWriter(tmp_path / name, np.int32) as writer:
            writer.append(np.arange(4 * samples + 1))
        tokens = IndexedTokens(tmp_path / name)
        return GPTSamples(tokens, range(1), 4, 1, num_samples) if num_samples else EpochSamples(tokens, range(1), 4, 1)

    return make


def counts_of(source: np.ndarray, num_sources: int) -> np.ndarray:
    """How often each source came in the first 1, 2, 3, ... samples (n, num_sources)."""
    return np.cumsum(source[:, None] == np.arange(num_sources), axis=0)


@pytest.mark.parametrize(
    ("case", "weights"), [("blend_0.5_0.25_0.25_x8", [0.5, 0.25, 0.25]), ("blend_0.3_0.7_x10", [0.3, 0.7])]
)
def test_megatrons_rule_is_the_recorded_one(case: str, weights: list[float]) -> None:
    source, sample = GOLDEN[case]
    drawn = draw_as_megatron(np.array(weights), np.zeros(len(weights), np.int64), len(source))
    assert drawn.tolist() == source
    assert [int(np.count_nonzero(drawn[:i] == k)) for i, k in enumerate(drawn)] == sample


RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    "weights",
    [
        [1e-9, 1.0],
        [7.0],
        [0.0, 1.0, 2.0],
        [30, 70],
        [0.0005] * 20 + [0.99],
        1.618 ** -np.arange(20),
        RANDOM.random(300),
        RANDOM.lognormal(sigma=2, size=300),
        [1 / 3] * 3,
    ],
    ids=lambda weights: f"{len(weights)}-{float(np.max(weights)):.3g}",
)
def test_every_prefix_is_within_one_sample_of_the_weights(weights: list[float]) -> None:
    share = np.asarray(weights, float) / np.sum(weights)
    source = draw_in_time(share, np.zeros(len(share), np.int64), 3000)
    counts = counts_of(source, len(share))
    apart = np.abs(counts - share * np.arange(1, len(source) + 1)[:, None])
    assert apart.max() <= 1
    assert counts[-1][share == 0].sum() == 0


def test_the_measure_sees_a_source_that_falls_behind() -> None:
    """Megatron's rule misses what the rule above holds: 20 small sources push a large one aside."""
    share = np.array([0.0005] * 20 + [0.99])
    counts = counts_of(draw_as_megatron(share, np.zeros(21, np.int64), 3000), 21)
    assert np.abs(counts - share * np.arange(1, 3001)[:, None]).max() > 1


@pytest.mark.parametrize("order", SampleOrder)
def test_each_source_gives_its_samples_in_turn(make_source: MakeSource, order: SampleOrder) -> None:
    blend = Blend([make_source("a", 9), make_source("b", 5)], [2, 1], order)
    draws = [blend.draw(n) for n in (1, 7, 0, 4, 30)]
    source, sample = (np.concatenate([getattr(d, name) for d in draws]) for name in ("source", "sample"))
    assert [sample[source == k].tolist() for k in (0, 1)] == [list(range(28)), list(range(14))]
    whole = Blend(blend.sources, [2, 1], order).draw(42)
    assert whole.source.tolist() == source.tolist()
    assert whole.sample.tolist() == sample.tolist()


def test_300_sources_of_very_different_sizes(make_source: MakeSource) -> None:
    weights = RANDOM.random(300)
    blend = Blend([make_source(str(i), 1 + i) for i in range(300)], weights.tolist())
    draws = blend.draw(1000)
    for k in range(300):
        mine = draws.sample[draws.source == k]
        assert mine.tolist() == list(range(mine.size))
        assert all(blend.sources[k][i].size == 5 for i in mine[-2:].tolist())


def drawn_pairs(blend: Blend, count: int) -> list[tuple[str, int]]:
    draws = blend.draw(count)
    return [(Path(blend.sources[k].name).name, i) for k, i in zip(draws.source, draws.sample.tolist(), strict=True)]


def test_other_weights_and_sources_lose_and_repeat_nothing(make_source: MakeSource) -> None:
    """1:1, then 2:1, then without b, then b again with a new one: each source goes on where it was."""
    a, b, c = make_source("a", 50), make_source("b", 11), make_source("c", 7)
    stretches = [([a, b], [1, 1], 40), ([a, b], [2, 1], 30), ([a], [1], 10), ([c, b, a], [1, 1, 2], 24)]
    position: Drawn | None = None
    seen: list[tuple[str, int]] = []
    for sources, weights, count in stretches:
        half = Blend(sources, weights)
        half.go_on(position)
        assert half.num_drawn == len(seen)
        first = drawn_pairs(half, count // 2)
        resumed = Blend(sources, weights)
        resumed.go_on(half.position)
        rest = drawn_pairs(resumed, count - count // 2)
        unbroken = Blend(sources, weights)
        unbroken.go_on(position)
        assert drawn_pairs(unbroken, count) == first + rest
        seen, position = seen + first + rest, resumed.position
        shares = [sum(name == Path(s.name).name for name, _ in first + rest) / count for s in sources]
        assert shares == pytest.approx([w / sum(weights) for w in weights], abs=1 / count)
    for name in "abc":
        mine = [i for other, i in seen if other == name]
        assert mine == list(range(len(mine))), name


def test_the_same_tokens_twice_are_refused(make_source: MakeSource) -> None:
    with pytest.raises(UserError, match=r"a and .*b hold the same tokens"):
        Blend([make_source("a", 5), make_source("b", 5)], [1, 1])


def test_a_finite_order_ends_with_counts(make_source: MakeSource) -> None:
    blend = Blend([make_source("a", 10, 10)], [1], SampleOrder.MEGATRON)
    blend.draw(10)
    with pytest.raises(UserError, match=r"needs sample 11 of .*a, but its order holds 10"):
        blend.draw(2)
    assert blend.num_drawn == 10


def test_epochs_of_each_source_at_the_end_of_the_run(make_source: MakeSource) -> None:
    blend = Blend([make_source("a", 100), make_source("b", 10)], [3, 1])
    blend.draw(40)
    facts = blend.epochs_by(200)
    assert [(f["share"], f["samples"], f["epochs"]) for f in facts] == [(0.75, 150, 1.5), (0.25, 50, 5.0)]
