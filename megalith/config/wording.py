"""Parts of a fault's message: the refused value, and valid ones near it."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any


def shown(value: Any) -> str:
    """`value` as it stands in a message, cut where it is long."""
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def choice(values: Iterable[int], near: int) -> str:
    """The six values nearest to `near` in ascending order, as `1, 2, 3 or 6`."""
    chosen = [str(value) for value in sorted(sorted(set(values), key=lambda value: abs(value - near))[:6])]
    return " or ".join([", ".join(chosen[:-1]), chosen[-1]] if len(chosen) > 1 else chosen)


def multiples(value: int, unit: int, most: float = inf) -> str:
    """The positive multiples of `unit` next to `value` on both sides, none above `most` unless there is no other."""
    below, above = value // unit * unit, -(-value // unit) * unit
    return choice([n for n in (below, above) if 0 < n <= most] or [max(above, unit)], value)
