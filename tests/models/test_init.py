"""First values: their spread, and that they depend on seed, name and row alone."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from megalith.config.model import Activation, ModelConfig, Norm
from megalith.models.decoder import Decoder
from megalith.models.init import ROWS_PER_BLOCK, draw, initialise

SHAPE = ModelConfig(3, 96, 4, 301, 130, init_std=0.03, embedding_norm=True, qk_norm=True)
GATED = ModelConfig(
    2, 96, 4, 301, 130, init_std=0.05, norm=Norm.RMSNORM, activation=Activation.SWIGLU, tied_embeddings=False
)


def initialised(config: ModelConfig, seed: int = 1) -> Decoder:
    model = Decoder(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(math.nan)
    initialise(model, config, seed)
    return model


@pytest.mark.parametrize("config", [SHAPE, GATED], ids=["gpt", "gated"])
def test_spread_of_each_parameter(config: ModelConfig) -> None:
    for name, parameter in initialised(config).named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            into_residual = ".output." in name or ".down." in name
            std = config.init_std / (math.sqrt(2 * config.num_layers) if into_residual else 1)
            count = parameter.numel()
            assert parameter.std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * count)), name
            assert abs(parameter.mean().item()) < 5 * std / math.sqrt(count), name


def test_a_tied_head_is_the_embedding_and_an_untied_one_is_not() -> None:
    tied, untied = initialised(SHAPE), initialised(GATED)
    assert tied.head.weight is tied.embedding.token.weight
    assert not torch.equal(untied.head.weight, untied.embedding.token.weight)


def test_seed_and_name_and_block_each_change_the_values() -> None:
    shape, rows = (2 * ROWS_PER_BLOCK, 8), range(2 * ROWS_PER_BLOCK)
    one = draw("blocks.0.mlp.up.weight", shape, rows, SHAPE, 1)
    assert torch.equal(one, draw("blocks.0.mlp.up.weight", shape, rows, SHAPE, 1))
    assert not torch.equal(one, draw("blocks.0.mlp.up.weight", shape, rows, SHAPE, 2))
    assert not torch.equal(one, draw("blocks.1.mlp.up.weight", shape, rows, SHAPE, 1))
    assert not torch.equal(one[:ROWS_PER_BLOCK], one[ROWS_PER_BLOCK:])
    assert len({x for x in one.flatten().tolist()}) > 0.99 * one.numel()


@pytest.mark.parametrize("parts", [2, 3, 4, 7, 400])
def test_rows_drawn_in_parts_are_those_drawn_at_once(parts: int) -> None:
    rows = 301
    whole = draw("head.weight", (rows, 16), range(rows), SHAPE, 5)
    chunk = -(-rows // parts)
    ends = [min(part * chunk, rows) for part in range(parts + 1)]
    pieces = [draw("head.weight", (rows, 16), range(a, b), SHAPE, 5) for a, b in pairwise(ends)]
    assert torch.equal(torch.cat(pieces), whole)


def test_global_random_state_is_neither_used_nor_changed() -> None:
    torch.manual_seed(3)
    one = initialised(SHAPE).embedding.token.weight.clone()
    torch.manual_seed(4)
    assert torch.equal(initialised(SHAPE).embedding.token.weight, one)
