"""Compiled blocks: one graph for all layers, and no stale one from torch's cache."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from megalith.config.model import Attention
from megalith.config.presets import model_preset
from megalith.models.decoder import Decoder
from megalith.models.init import initialise
from megalith.parallelize.compiled import digest_of_ops

PROGRAM = """
import sys, torch
factor, tag = int(sys.argv[1]), sys.argv[2]

@torch.library.custom_op("probe::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

twice.register_fake(torch.empty_like)
twice.register_autograd(lambda ctx, dy: dy * factor)
torch.compiler.config.cache_key_tag = tag
x = torch.ones(3, requires_grad=True)
torch.compile(lambda x: twice(x).sum(), fullgraph=True)(x).backward()
print(int(x.grad[0]))
"""


def test_layers_share_one_graph() -> None:
    """Dropout's site differs between layers; as a number it made a graph of each, and torch gives up after eight."""
    config = replace(model_preset("gpt-tiny"), num_layers=10, dropout=0.1, attention_dropout=0.1)
    model = Decoder(config, Attention.UNFUSED)
    initialise(model, config, 1)
    tokens_BS, seed = torch.zeros((2, 16), dtype=torch.int64), torch.tensor(3)
    eager = model(tokens_BS, seed=seed)
    graphs = CompileCounter()
    for block in model.blocks:
        block.compile(fullgraph=True, backend=graphs)
    torch.testing.assert_close(model(tokens_BS, seed=seed), eager)
    model(tokens_BS, seed=seed + 1)
    assert graphs.frame_count == 1


@pytest.mark.slow
def test_key_tag_tells_backwards_apart(tmp_path) -> None:
    def gradient(factor: int, tag: str) -> int:
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-c", PROGRAM, str(factor), tag]
        return int(subprocess.run(command, env=environment, capture_output=True, check=True, timeout=300).stdout)

    assert gradient(2, "old sources") == 2
    assert gradient(3, "new sources") == 3
    assert gradient(3, "old sources") == 2, "torch now tells them apart itself: compile_blocks need no longer do it"


def test_digest_follows_the_sources(tmp_path, monkeypatch) -> None:
    from megalith import models

    before = digest_of_ops()
    assert digest_of_ops() == before
    (tmp_path / "op.py").write_text("backward = 1")
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    first = digest_of_ops()
    (tmp_path / "op.py").write_text("backward = 2")
    assert len({before, first, digest_of_ops()}) == 3
