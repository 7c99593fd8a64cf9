"""Token files whose ids tell where they stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from megalith.tokens.indexed import IndexedTokens
from megalith.tokens.writer import IndexedWriter

MakeTokens = Callable[[Sequence[int]], IndexedTokens]


@pytest.fixture
def make_tokens(tmp_path: Path) -> MakeTokens:
    """Sequences of the given lengths whose ids count 0, 1, 2, ... through the file."""

    def make(lengths: Sequence[int]) -> IndexedTokens:
        start, prefix = 0, tmp_path / f"tokens{len(list(tmp_path.glob('*.bin')))}"
        with IndexedWriter(prefix, np.int32) as writer:
            for length in lengths:
                writer.append(np.arange(start, start + length))
                start += length
        return IndexedTokens(prefix)

    return make
