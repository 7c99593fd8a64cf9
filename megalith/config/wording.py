"""The ways out that a fault offers: valid values near the refused one."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf


def choice(values: Iterable[int], near: int) -> str:
    """The six values nearest to `near` in ascending order, as `1, 2, 3 or 6`."""
    chosen = [str(value) for value in sorted(sorted(set(values), key=lambda value: abs(value - near))[:6])]
    return " or ".join([", ".join(chosen[:-1]), chosen[-1]] if len(chosen) > 1 else chosen)


def multiples(value: int, unit: int, most: float = inf) -> str:
    """The positive multiples of `unit` next to `value` on both sides, none above `most` unless there is no other."""
    below, above = value // unit * unit, -(-value // unit) * unit
    return choice([n for n in (below, above) if 0 < n <= most] or [max(above, unit)], value)
