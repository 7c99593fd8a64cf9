"""The floor that a language model must beat: a bigram model that falls back to single tokens and to the vocabulary.

p(b | a) = w2 c(a, b) / c(a) + w1 c(b) / N + w0 / V, with weights that depend on how often `a` was seen (Jelinek and
Mercer, 1980). The weights are found by expectation-maximisation on a part of the training tokens that the counts leave
out; the counts are then taken over all training tokens. Numpy alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megalith.errors import UserError

Tokens = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Bigram:
    """Counts and weights. `pair_keys` are the sorted a * vocab_size + b of the pairs seen, `pair_counts` theirs.

    `weights` is (buckets, 3): shares of bigram, unigram and uniform for contexts seen 2^(i-1) .. 2^i - 1 times.
    """

    vocab_size: int
    pair_keys: Tokens
    pair_counts: Tokens
    unigram_counts: Tokens
    context_counts: Tokens
    weights: Floats

    def nats(self, tokens: Tokens) -> float:
        """Negative log-likelihood of tokens[1:], each given the token before it, summed."""
        parts = _parts(self, tokens)
        mixed = (self.weights[_bucket(self.context_counts[tokens[:-1]])] * parts).sum(axis=1)
        return float(-np.log(mixed).sum())


def fit_bigram(tokens: Tokens, vocab_size: int, tuning_share: float = 0.1, iterations: int = 30) -> Bigram:
    """Counts `tokens` (ids in 0..vocab_size-1) and tunes the weights on their last `tuning_share`.

    Raises UserError where there are too few tokens to tune on or an id is outside the vocabulary.
    """
    tokens = np.asarray(tokens, dtype=np.int64)
    cut = len(tokens) - int(len(tokens) * tuning_share)
    if cut < 2 or len(tokens) - cut < 2:
        raise UserError(f"{len(tokens)} tokens are too few for a bigram model; give at least {int(4 / tuning_share)}")
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise UserError(f"token {tokens.max()} is outside vocab_size={vocab_size}; give the tokenizer's own size")
    tuned = _tune(_count(tokens[:cut], vocab_size), tokens[cut:], iterations)
    return Bigram(**{**vars(_count(tokens, vocab_size)), "weights": tuned})


def _count(tokens: Tokens, vocab_size: int) -> Bigram:
    keys, counts = np.unique(tokens[:-1] * vocab_size + tokens[1:], return_counts=True)
    return Bigram(
        vocab_size=vocab_size,
        pair_keys=keys,
        pair_counts=counts,
        unigram_counts=np.bincount(tokens, minlength=vocab_size),
        context_counts=np.bincount(tokens[:-1], minlength=vocab_size),
        weights=np.full((64, 3), 1 / 3),
    )


def _bucket(context_counts: Tokens) -> Tokens:
    """0 for a context never seen, else the number of binary digits of its count."""
    return np.frexp(context_counts.astype(np.float64))[1].astype(np.int64)


def _parts(model: Bigram, tokens: Tokens) -> Floats:
    """(len(tokens) - 1, 3): probability of each next token by bigram, unigram and uniform."""
    before, after = tokens[:-1], tokens[1:]
    keys = before * model.vocab_size + after
    found = np.minimum(np.searchsorted(model.pair_keys, keys), len(model.pair_keys) - 1)
    pairs = np.where(model.pair_keys[found] == keys, model.pair_counts[found], 0)
    bigram = pairs / np.maximum(model.context_counts[before], 1)
    unigram = model.unigram_counts[after] / model.unigram_counts.sum()
    return np.stack([bigram, unigram, np.full(len(keys), 1 / model.vocab_size)], axis=1)


def _tune(model: Bigram, tokens: Tokens, iterations: int) -> Floats:
    """Weights per bucket that make `tokens` likeliest; a bucket met too rarely takes what all buckets share."""
    parts = _parts(model, tokens)
    bucket = _bucket(model.context_counts[tokens[:-1]])
    shared = _maximise(parts, iterations)
    weights = np.tile(shared, (len(model.weights), 1))
    for index in np.unique(bucket):
        members = parts[bucket == index]
        if len(members) >= 100:
            weights[index] = _maximise(members, iterations)
    unseen = np.array([0.0, *(shared[1:] / shared[1:].sum())])
    weights[0] = unseen
    return 0.999 * weights + 0.001 * np.where(weights[:, :1] > 0, 1 / 3, unseen)


def _maximise(parts: Floats, iterations: int) -> Floats:
    weights = np.full(3, 1 / 3)
    for _ in range(iterations):
        shares = weights * parts
        weights = (shares / shares.sum(axis=1, keepdims=True)).mean(axis=0)
    return weights
