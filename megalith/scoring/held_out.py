"""How well a model predicts text that it was not trained on: bits per byte, whatever its tokens are.

# B windows  S positions
"""

from __future__ import annotations

from math import log
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Scorer(Protocol):
    """What is scored: (tokens_BS, targets_BS) to the sum of the losses of all targets, in nats."""

    def __call__(self, tokens_BS: Tensor, targets_BS: Tensor) -> Tensor: ...


@torch.no_grad()
def nats(model: Scorer, tokens: NDArray[np.int64], seq_len: int, batch_size: int = 32) -> float:
    """Negative log-likelihood of tokens[1:], summed, in windows of `seq_len` tokens that do not overlap.

    A token sees what stands before it in its own window; the first target of a window sees one token.
    """
    device = next(model.parameters()).device if isinstance(model, torch.nn.Module) else "cpu"
    stream = torch.from_numpy(tokens).to(device)
    whole = (len(stream) - 1) // seq_len * seq_len
    total, step = 0.0, batch_size * seq_len
    for start in range(0, whole, step):
        end = min(start + step, whole)
        total += float(model(stream[start:end].view(-1, seq_len), stream[start + 1 : end + 1].view(-1, seq_len)))
    if whole < len(stream) - 1:
        total += float(model(stream[None, whole:-1], stream[None, whole + 1 :]))
    return total


def bits_per_byte(total_nats: float, num_bytes: int) -> float:
    """Nats of a text as bits for each byte of its UTF-8 form; comparable between tokenizers, unlike loss per token."""
    return total_nats / log(2) / num_bytes
