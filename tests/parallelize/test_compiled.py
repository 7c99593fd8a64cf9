"""A changed backward of a custom op is not served from torch's cache of compiled code."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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
