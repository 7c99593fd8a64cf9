"""Open what a recipe reads: the blend to train on and the sets to validate on, their orders from the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from math import ceil
from pathlib import Path
from typing import Any

from megalith.config.recipe import Data, Recipe, SampleOrder
from megalith.data.blend import Blend
from megalith.data.index_cache import IndexCache
from megalith.data.loader import Boundaries
from megalith.data.samples import EpochSamples, GPTSamples, Samples
from megalith.data.splits import split_ranges
from megalith.errors import UserError
from megalith.tokens.indexed import IndexedTokens
from megalith.tokens.manifest import read_manifest
from megalith.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class RunData:
    """train: the samples of the run.  validation: one pass over each set, by name.  boundaries: of their documents.

    caches: where their orders lie.
    """

    train: Blend
    validation: Mapping[str, GPTSamples]
    boundaries: Boundaries
    caches: tuple[IndexCache, ...]


def open_data(recipe: Recipe) -> RunData:
    """The data of a run; validation sets only where the recipe validates.

    Raises UserError where a token file is missing or damaged, or a split is too small for one sample.
    """
    caches: dict[Path, IndexCache] = {}
    blend, validation = _blend(recipe, caches), _validation(recipe, caches)
    end = end_of_document(recipe.data) if recipe.data.eod_mask_loss else None
    return RunData(blend, validation, Boundaries(recipe.data.document_boundaries, end), tuple(caches.values()))


def prepare(recipe: Recipe) -> RunData:
    """As `open_data`, with the orders of the whole run in the cache, so that training builds none."""
    data = open_data(recipe)
    for source, facts in zip(data.train.sources, epochs_of(recipe, data), strict=True):
        if isinstance(source, EpochSamples):
            source.prepare(facts["samples"] + 1)
    return data


def epochs_of(recipe: Recipe, data: RunData) -> list[dict[str, Any]]:
    """What each source will have given at the end of the run, see `Blend.epochs_by`."""
    return data.train.epochs_by(recipe.train_steps * recipe.batch.global_batch_size)


def order_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What in the recipe `now` numbers samples otherwise than in `before` (trees), as `name: new, and old before`.

    Other weights, sources, batch sizes or steps do not, unless the order is Megatron's.
    """
    places = ["seed", "batch.seq_len", "data.split", "data.order"]
    if now["data"]["order"] == SampleOrder.MEGATRON:
        places += ["train_steps", "batch.global_batch_size", "data.blend"]
    changes = []
    for place in places:
        old, new = (reduce(lambda tree, key: tree.get(key, {}), place.split("."), tree) for tree in (before, now))
        if old not in (new, {}):
            changes.append(f"{place}: {new}, and {old} before")
    return changes


def describe(source: Mapping[str, Any]) -> str:
    """One line about a source of `epochs_of`."""
    return (
        f"{source['name']}: {source['share']:.1%} of the samples, {source['samples']:,} of "
        f"{source['samples_per_epoch']:,} in one epoch: {source['epochs']:.2f} epochs"
    )


def _blend(recipe: Recipe, caches: dict[Path, IndexCache]) -> Blend:
    data, run_samples = recipe.data, recipe.train_steps * recipe.batch.global_batch_size
    total = sum(part.weight for part in data.sources)
    sources: list[Samples] = []
    for part in data.sources:
        tokens = IndexedTokens(part.prefix)
        place = (tokens, split_ranges(data.split, len(tokens))[0], recipe.batch.seq_len, recipe.seed)
        cache = _cache(recipe, part.prefix, caches)
        if data.order is SampleOrder.MEGATRON:
            sources.append(GPTSamples(*place, _needed(run_samples, part.weight / total), cache))
        else:
            sources.append(EpochSamples(*place, cache))
    return Blend(sources, [part.weight for part in data.sources], data.order)


def _needed(run_samples: int, share: float) -> int:
    """Samples of a source that Megatron makes an order for: some more than its share where it is one of several."""
    return run_samples if share == 1 else ceil(ceil(run_samples * share) * 1.005)


def _validation(recipe: Recipe, caches: dict[Path, IndexCache]) -> dict[str, GPTSamples]:
    data = recipe.data
    if recipe.validation.interval_steps == 0:
        return {}
    sets = {}
    for name, prefix in validation_prefixes(data).items():
        tokens = IndexedTokens(prefix)
        sequences = range(len(tokens)) if data.validation else split_ranges(data.split, len(tokens))[1]
        cache = _cache(recipe, prefix, caches)
        sets[name] = GPTSamples(tokens, sequences, recipe.batch.seq_len, recipe.seed, cache=cache)
    return sets


def end_of_document(data: Data) -> int:
    """The id that ends documents, by the tokenizer or by what the token files say of themselves.

    Raises UserError where neither is there.
    """
    if data.tokenizer is not None:
        return Tokenizer.open(data.tokenizer).end_of_document
    for part in data.sources:
        if manifest := read_manifest(part.prefix):
            return manifest.end_of_document
    raise UserError(
        "data.eod_mask_loss=true needs the id that ends documents, and neither data.tokenizer nor a manifest beside "
        f"{data.sources[0].prefix} tells it; choose data.tokenizer=tokenizer.json or data.eod_mask_loss=false"
    )


def validation_prefixes(data: Data) -> dict[str, str]:
    """Token files to validate on by the name of their set: those of `data.validation`, else all that are drawn from."""
    if data.validation:
        return {one.name: one.prefix for one in data.validation}
    prefixes = [part.prefix for part in data.sources if part.weight > 0]
    if len(prefixes) == 1:
        return {"validation": prefixes[0]}
    short = {Path(prefix).name: prefix for prefix in prefixes}
    return short if len(short) == len(prefixes) else {prefix: prefix for prefix in prefixes}


def _cache(recipe: Recipe, prefix: str, caches: dict[Path, IndexCache]) -> IndexCache:
    """The cache that the recipe names, or the folder beside the token file."""
    folder = Path(recipe.data.index_cache or Path(prefix).parent / "index_cache")
    return caches.setdefault(folder, IndexCache(folder))
