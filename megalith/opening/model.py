"""Open a trained model where it stands: a run's folder or one of its checkpoints, of any layout, into one process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from megalith.checkpoint import store
from megalith.checkpoint.folder import MANIFEST, find_checkpoint, read_manifest
from megalith.config.model import Attention, ModelConfig
from megalith.config.reader import parse_recipe
from megalith.errors import UserError
from megalith.models.decoder import Decoder
from megalith.tokens.tokenizer import Tokenizer

TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True)
class OpenModel:
    """A plain model in evaluation mode on one device, and its tokenizer. `step`: optimizer steps behind it."""

    model: Decoder
    tokenizer: Tokenizer
    config: ModelConfig
    step: int


def open_model(path: str | Path, device: str | torch.device = "cpu") -> OpenModel:
    """Read the newest whole checkpoint of a run folder, or the checkpoint folder itself; no process group is needed.

    Raises UserError where there is no whole checkpoint, or no tokenizer.json that belongs to it beside it or above it.
    """
    checkpoint = find_checkpoint(Path(path))
    manifest = read_manifest(checkpoint)
    recipe = parse_recipe(json.dumps(manifest.recipe), [], name=f"{checkpoint}/{MANIFEST}")
    # the fused kernel has no attention dropout; both compute the same without it
    with torch.device("meta"):
        model = Decoder(recipe.model, Attention.SDPA)
    model.to_empty(device=device)
    model.tie()
    store.load(checkpoint, model)
    tokenizer = _tokenizer_of(checkpoint, manifest.tokenizer_digest)
    return OpenModel(model.eval().requires_grad_(False), tokenizer, recipe.model, manifest.step)


def _tokenizer_of(checkpoint: Path, digest: str | None) -> Tokenizer:
    places = [checkpoint / TOKENIZER_FILE, checkpoint.parent.parent / TOKENIZER_FILE]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise UserError(
            f"{checkpoint} has no {TOKENIZER_FILE} in it or in its run's folder; copy the one that its text was "
            f"tokenized with to {places[1]}"
        )
    tokenizer = Tokenizer.open(found)
    if digest is not None and tokenizer.digest != digest:
        raise UserError(f"{found} is not the tokenizer that {checkpoint} was trained with (their digests differ)")
    return tokenizer
