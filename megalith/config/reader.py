"""Read a recipe: YAML and `key=value` overrides into frozen dataclasses, every fault of it reported at once."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any

from megalith.config.model import ModelConfig
from megalith.config.partial import partial_instance
from megalith.config.presets import PRESETS, unknown_preset
from megalith.config.recipe import Recipe
from megalith.config.tree import is_null, lay_over, parse_yaml, to_tree, to_yaml
from megalith.config.validator import faults
from megalith.config.wording import shown
from megalith.errors import UserError

__all__ = ["parse_recipe", "read_recipe", "to_tree", "to_yaml"]

SHORTHANDS = {"model": "preset", "recompute": "granularity"}  # `model: x` means `model: {preset: x}`
EXAMPLES = {  # for what has no default
    "model": "gpt3-126m",
    "model.num_layers": "12",
    "model.hidden_size": "768",
    "model.num_attention_heads": "12",
    "model.vocab_size": "50257",
    "model.max_seq_len": "2048",
    "data.prefix": "data/text",
    "data.blend.prefix": "data/text",
    "data.blend.weight": "0.5",
    "data.validation.name": "held_out",
    "data.validation.prefix": "data/held_out",
    "batch.seq_len": "1024",
    "batch.micro_batch_size": "1",
    "batch.global_batch_size": "8",
    "train_steps": "1000",
    "output": "runs/first",
}
_UNUSABLE = object()


def read_recipe(path: str | Path, overrides: list[str], world_size: int | None = None) -> Recipe:
    """The recipe in the YAML file `path` with `overrides` such as `optimizer.lr=1e-4` laid over it.

    Raises UserError with every fault that can be judged: in the text, in names and types, between fields, and, where
    `world_size` is given, on that number of processes.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        near = get_close_matches(Path(path).name, [file.name for file in Path(path).parent.glob("*.yaml")], n=1)
        hint = f"; did you mean {Path(path).parent / near[0]}?" if near and near[0] != Path(path).name else ""
        raise UserError(f"cannot read the recipe {path}: {getattr(error, 'strerror', None) or error}{hint}") from error
    return parse_recipe(text, overrides, world_size, str(path))


def parse_recipe(text: str, overrides: list[str], world_size: int | None = None, name: str = "recipe") -> Recipe:
    """As `read_recipe`, from the YAML text itself; `name` stands in messages."""
    found: list[str] = []
    try:
        tree = parse_yaml(text, found)
    except ValueError as error:
        raise UserError(f"{name} is not valid YAML: {error}") from error
    if not isinstance(tree, dict):
        required = ", ".join(field.name for field in fields(Recipe) if _default(field) is MISSING)
        raise UserError(f"{name} holds no `key: value` lines; it must give {required}; start with `model: gpt3-126m`")
    for override in overrides:
        lay_over(tree, override, SHORTHANDS, found)
    recipe = _read(Recipe, tree, "", found)
    found += faults(recipe, world_size)
    if found:
        count = "a fault" if len(found) == 1 else f"{len(found)} faults"
        raise UserError("\n".join([f"{name} has {count}:", *(f"  - {message}" for message in found)]))
    return recipe


def _read(kind: Any, value: Any, path: str, found: list[str]) -> Any:
    """`value` as type `kind`, or _UNUSABLE with the reason in `found`."""
    if value is _UNUSABLE:
        return value
    if is_dataclass(kind):
        return _read_dataclass(kind, value, path, found)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        inner = [choice for choice in inner if choice is not types.NoneType]
        return None if is_null(value) else _read(inner[0], value, path, found)
    if origin is tuple:
        return _read_tuple(inner[0], value, path, found)
    return _read_scalar(kind, value, path, found)


def _read_dataclass(cls: Any, tree: Any, path: str, found: list[str]) -> Any:
    """An instance of `cls`; a field without a usable value raises Unjudged when it is read."""
    kinds, names = typing.get_type_hints(cls), [field.name for field in fields(cls)]
    if isinstance(tree, str) and path in SHORTHANDS:
        tree = {SHORTHANDS[path]: tree}
    if not isinstance(tree, Mapping):
        found.append(f"{path}={shown(tree)} must hold fields; write {path}.{names[0]}={_example(f'{path}.{names[0]}')}")
        return _UNUSABLE
    if cls is ModelConfig and "preset" in tree:
        tree = _over_preset(tree, names, found)
    found += [_unknown_key(key, names, path) for key in tree if key not in names]
    values = {}
    for field in fields(cls):
        where, kind = f"{path}.{field.name}".lstrip("."), kinds[field.name]
        blank = is_dataclass(kind) and is_null(tree.get(field.name))
        if field.name in tree and not blank:
            values[field.name] = _read(kind, tree[field.name], where, found)
        elif _default(field) is not MISSING:
            values[field.name] = _default(field)
        elif is_dataclass(kind) and where not in EXAMPLES:
            values[field.name] = _read(kind, {}, where, found)
        else:
            found.append(f"{where} is missing; write for example {where}={_example(where)}")
            values[field.name] = _UNUSABLE
    return partial_instance(cls, values, [name for name, value in values.items() if value is _UNUSABLE])


def _over_preset(tree: Mapping, names: list[str], found: list[str]) -> dict:
    """The fields of `tree` laid over those of the preset that it names."""
    given = {key: value for key, value in tree.items() if key != "preset"}
    name = tree["preset"]
    if not isinstance(name, str) or name not in PRESETS:
        found.append(unknown_preset(shown(name)))
        return dict.fromkeys(names, _UNUSABLE) | given
    preset = parse_yaml(to_yaml(PRESETS[name]), found)
    for key, value in given.items():
        both_hold_fields = isinstance(value, dict) and isinstance(preset.get(key), dict)
        preset[key] = preset[key] | value if both_hold_fields else value
    return preset


def _read_tuple(kind: Any, value: Any, path: str, found: list[str]) -> Any:
    if not isinstance(value, list):
        found.append(f"{path}={shown(value)} must be a list; write {path}=[{shown(value)}]")
        return _UNUSABLE
    items = tuple(_read(kind, item, f"{path}[{i}]", found) for i, item in enumerate(value))
    return _UNUSABLE if _UNUSABLE in items else items


def _read_scalar(kind: Any, value: Any, path: str, found: list[str]) -> Any:
    try:
        if not isinstance(value, str):
            raise ValueError("a list or mapping where one value belongs")
        if kind is str and is_null(value):
            return ""  # whether nothing will do is for the rules of the field to say
        result = {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)
        if isinstance(result, int) and not -(2**63) <= result < 2**63:
            raise ValueError("wider than the integers of torch and numpy")
        return result
    except (ValueError, KeyError):
        rule, way_out = _rule(kind, value, path)
        found.append(f"{path}={shown(value)} must be {rule}; choose {way_out}")
        return _UNUSABLE


def _rule(kind: Any, value: Any, path: str) -> tuple[str, str]:
    """What a value of type `kind` looks like, and a valid one near `value`."""
    text = value.lower() if isinstance(value, str) else ""
    if issubclass(kind, Enum):
        allowed = [member.value for member in kind]
        near = get_close_matches(text, allowed, n=1) or allowed
        return f"one of {', '.join(allowed)}", near[0]
    if kind is bool:
        return "true or false", "false" if text in ("no", "off", "0", "n", "f") else "true"
    if kind is int:
        try:
            number = float(text.replace(",", ""))
        except ValueError:
            number = float("nan")
        return "a whole number of 64 bits", str(max(1, round(number))) if abs(number) < 2**63 else _example(path)
    return "a number" if kind is float else "text", _example(path)


def _default(field: Field) -> Any:
    """The default of a field, MISSING where it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def _known_paths(cls: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted path below `cls` with its default."""
    kinds = typing.get_type_hints(cls)
    for field in fields(cls):
        kind = next((k for k in (kinds[field.name], *typing.get_args(kinds[field.name])) if is_dataclass(k)), None)
        yield path + field.name, _default(field)
        if kind is not None:
            yield from _known_paths(kind, f"{path}{field.name}.")


def _example(path: str) -> str:
    """A valid value for the field at `path`; which item of a list it belongs to makes no difference."""
    path = re.sub(r"\[\d+\]", "", path)
    default = dict(_known_paths(Recipe)).get(path, MISSING)
    return EXAMPLES.get(path, "1" if default is None or default is MISSING else str(default))


def _unknown_key(key: str, names: Iterable[str], path: str) -> str:
    """The message for a key that no field has: the nearest one here, else one of that name elsewhere."""
    prefix = f"{path}." if path else ""
    elsewhere = [known for known, _ in _known_paths(Recipe) if known.split(".")[-1] == key]
    near = [prefix + name for name in get_close_matches(key, names, n=1, cutoff=0.7)] or elsewhere
    near = near or [prefix + name for name in get_close_matches(key, names, n=1, cutoff=0.4)]
    way_out = f"did you mean {' or '.join(near)}?" if near else f"choose among {', '.join(names)}"
    return f"{prefix}{shown(key)} is not a known key; {way_out}"
