"""The rules on what a recipe reads: each function returns its message or None."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf

from megalith.config.recipe import Recipe
from megalith.config.split import split_shares
from megalith.config.wording import shown


def prefix_or_blend(recipe: Recipe) -> str | None:
    data = recipe.data
    if not data.prefix and not data.blend:
        return (
            "data.prefix is missing, and there is no data.blend: one of them must name token files; write for example "
            "data.prefix=data/text"
        )
    if data.prefix and data.blend:
        return (
            f"data.prefix={shown(data.prefix)} and data.blend are both given, and only one of them can say what to "
            "train on; choose data.prefix=null or data.blend=[]"
        )
    return None


def blend_names_files_once(recipe: Recipe) -> str | None:
    times = Counter(part.prefix for part in recipe.data.blend)
    if "" in times:
        return "data.blend holds a part with prefix=''; each must name a token file, for example prefix: data/text"
    twice = [prefix for prefix, count in times.items() if count > 1]
    if not twice:
        return None
    together = sum(part.weight for part in recipe.data.blend if part.prefix == twice[0])
    return f"data.blend names {shown(twice[0])} twice; name it once, with weight: {together:g}"


def blend_weights(recipe: Recipe) -> str | None:
    for part in recipe.data.blend:
        if not 0 <= part.weight < inf:
            way_out = -part.weight if -inf < part.weight < 0 else 1.0
            return (
                f"data.blend: weight={part.weight} of {shown(part.prefix)} must be a finite number of at least 0; "
                f"choose weight: {way_out:g}"
            )
    if recipe.data.blend and sum(part.weight for part in recipe.data.blend) == 0:
        return "data.blend: all weights are 0, so nothing is drawn; choose weight: 1 for one of them"
    return None


def split_is_three_shares(recipe: Recipe) -> str | None:
    try:
        split_shares(recipe.data.split)
    except ValueError as error:
        return f"data.split={shown(recipe.data.split)} {error}"
    return None


def validation_sets_have_names(recipe: Recipe) -> str | None:
    for one in recipe.data.validation:
        if not one.name.replace("-", "_").isidentifier():
            return (
                f"data.validation: name={shown(one.name)!r} must be made of letters, digits, _ and -; "
                "choose for example name: held_out"
            )
        if not one.prefix:
            return f"data.validation: prefix='' of {one.name} must name a token file; write prefix: data/{one.name}"
    twice = [name for name, count in Counter(one.name for one in recipe.data.validation).items() if count > 1]
    return f"data.validation: name={twice[0]} is given twice; choose name: {twice[0]}_2" if twice else None


def validation_has_data(recipe: Recipe) -> str | None:
    interval, split = recipe.validation.interval_steps, recipe.data.split
    try:
        if interval == 0 or recipe.data.validation or split_shares(split)[1] > 0:
            return None
    except ValueError:
        return None
    return (
        f"validation.interval_steps={interval} needs data: data.split={split} leaves none for validation, and "
        "data.validation names no files; choose validation.interval_steps=0 or data.split=98,2,0"
    )


DATA_RULES: tuple[Callable[[Recipe], str | None], ...] = (
    prefix_or_blend,
    blend_names_files_once,
    blend_weights,
    split_is_three_shares,
    validation_sets_have_names,
    validation_has_data,
)
