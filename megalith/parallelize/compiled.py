"""Compiled blocks, and a compiler cache that notices when the ops of this package change."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from megalith import models, parallel
from megalith.models.decoder import Decoder


def compile_blocks(model: Decoder) -> None:
    """Compile each block, without breaks.

    Torch's cache on disk looks at the forward of a custom op alone: with an older version's entries a changed backward
    would silently run as it was before. So the sources of the ops are made part of every key.
    """
    torch.compiler.config.cache_key_tag = digest_of_ops()
    for block in model.blocks:
        block.compile(fullgraph=True)


def digest_of_ops() -> str:
    """A digest of the files that define ops and modules."""
    digest = hashlib.sha256()
    for package in (models, parallel):
        for folder in package.__path__:
            for file in sorted(Path(folder).glob("*.py")):
                digest.update(file.read_bytes())
    return digest.hexdigest()
