"""A dataclass some of whose fields hold nothing usable, so that the rules on the other fields can still be judged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any, NoReturn


class Unjudged(Exception):
    """A rule read a field that has no usable value: it says neither yes nor no."""


def _refuse(self: object) -> NoReturn:
    raise Unjudged


def partial_instance(cls: type, values: Mapping[str, Any], unusable: Collection[str]) -> Any:
    """An instance of dataclass `cls` with `values`; reading a field named in `unusable` raises Unjudged.

    Properties of `cls` work as far as the fields that they read are usable.
    """
    if not unusable:
        return cls(**values)
    instance = object.__new__(type(cls.__name__, (cls,), {name: property(_refuse) for name in unusable}))
    for name, value in values.items():
        if name not in unusable:
            object.__setattr__(instance, name, value)
    return instance


def without(node: Any, paths: Collection[str]) -> Any:
    """The dataclass `node` with the fields at dotted `paths` made unusable, in nested dataclasses too."""
    if not paths:
        return node
    unusable = {path for path in paths if "." not in path}
    values = {}
    for name in (field.name for field in fields(node) if field.name not in unusable):
        inner = [path.removeprefix(f"{name}.") for path in paths if path.startswith(f"{name}.")]
        try:
            values[name] = without(getattr(node, name), inner)
        except Unjudged:
            unusable.add(name)
    return partial_instance(type(node), values, unusable)


def judged(rule: Callable[..., Any], *arguments: Any) -> Any:
    """What `rule(*arguments)` returns; None where it reads a field that has no usable value."""
    try:
        return rule(*arguments)
    except Unjudged:
        return None
