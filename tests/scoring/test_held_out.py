"""Bits per byte: every token scored once, in windows, whatever the length."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from megalith.config.model import Attention
from megalith.config.presets import model_preset
from megalith.models.decoder import Decoder
from megalith.models.init import initialise
from megalith.scoring.held_out import bits_per_byte, nats


@pytest.mark.parametrize("length", [2, 8, 9, 10, 17, 41])
def test_each_token_is_scored_once_with_its_window_before_it(length: int) -> None:
    model = Decoder(model_preset("gpt-tiny"), Attention.SDPA).double()
    initialise(model, model.config, seed=1)
    tokens = np.random.default_rng(0).integers(0, 256, length)
    seq_len, expected = 8, 0.0
    for target in range(1, length):
        window = tokens[(target - 1) // seq_len * seq_len : target]
        logits_TV = model(torch.from_numpy(window)[None])
        expected -= torch.log_softmax(logits_TV[-1], 0)[tokens[target]].item()
    assert nats(model, tokens, seq_len, batch_size=2) == pytest.approx(expected, rel=1e-10)


def test_bits_per_byte_of_a_uniform_guess_over_bytes_is_eight() -> None:
    assert bits_per_byte(1000 * float(np.log(256)), 1000) == pytest.approx(8)
