"""The bigram baseline: probabilities by hand, sums of one, and weights that are really tuned."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

from megalith.errors import UserError
from megalith.scoring.bigram import fit_bigram


def markov_text(length: int, vocab_size: int, sharpness: float, seed: int) -> np.ndarray:
    """Tokens of which the next is (last + 1) mod vocab_size with probability `sharpness`, else any."""
    random = np.random.default_rng(seed)
    steps = np.where(random.random(length) < sharpness, 1, random.integers(0, vocab_size, length))
    return np.cumsum(steps) % vocab_size


@pytest.mark.parametrize("context", range(7))
def test_probabilities_of_the_next_token_sum_to_one(context: int) -> None:
    """Also after a context that was never seen (6) and for tokens that were never seen."""
    model = fit_bigram(markov_text(500, 6, 0.7, seed=1), vocab_size=7)
    probabilities = [exp(-model.nats(np.array([context, after]))) for after in range(7)]
    assert sum(probabilities) == pytest.approx(1, abs=1e-12)
    assert min(probabilities) > 0


def test_counts_and_weights_give_the_formula() -> None:
    text = np.array([0, 1, 0, 1, 0, 2] * 50)
    model = fit_bigram(text, vocab_size=4)
    bigram, unigram, uniform = model.weights[8]  # 0 was seen 150 times: 8 binary digits
    expected = bigram * 100 / 150 + unigram * 100 / 300 + uniform / 4
    assert model.nats(np.array([0, 1])) == pytest.approx(-log(expected), rel=1e-12)


def test_it_reaches_the_entropy_of_a_markov_chain() -> None:
    vocab_size, sharpness = 20, 0.8
    model = fit_bigram(markov_text(60_000, vocab_size, sharpness, seed=1), vocab_size)
    fresh = markov_text(20_000, vocab_size, sharpness, seed=2)
    likely = sharpness + (1 - sharpness) / vocab_size
    rare = (1 - sharpness) / vocab_size
    entropy = -likely * log(likely) - (vocab_size - 1) * rare * log(rare)
    assert model.nats(fresh) / (len(fresh) - 1) == pytest.approx(entropy, rel=0.03)


def test_tuned_weights_beat_fixed_ones() -> None:
    """Few tokens over many types: trusting the bigram alone would cost much."""
    text, fresh = markov_text(2000, 200, 0.3, seed=3), markov_text(2000, 200, 0.3, seed=4)
    model = fit_bigram(text, 200)
    trusting = type(model)(**{**vars(model), "weights": np.tile([0.98, 0.01, 0.01], (64, 1))})
    assert model.nats(fresh) < 0.9 * trusting.nats(fresh)


def test_too_few_tokens_and_foreign_ids_are_refused() -> None:
    with pytest.raises(UserError, match="3 tokens are too few for a bigram model; give at least 40"):
        fit_bigram(np.array([0, 1, 2]), 3)
    with pytest.raises(UserError, match="token 7 is outside vocab_size=7"):
        fit_bigram(np.arange(100) % 8, 7)
