"""A small set of cases in which any two values of any two factors meet (pairwise testing), made greedily."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

Row = dict[str, Any]


def pairwise(factors: Mapping[str, Sequence[Any]], allowed: Callable[[Row], bool], seed: int = 0) -> list[Row]:
    """Rows that cover every pair of values that an allowed row can hold; the same for the same seed."""
    rng = random.Random(seed)

    def candidate() -> Row:
        while True:
            row = {name: rng.choice(values) for name, values in factors.items()}
            if allowed(row):
                return row

    def pairs(row: Row) -> set[tuple]:
        return {(a, str(row[a]), b, str(row[b])) for a, b in combinations(factors, 2)}

    open_pairs: set[tuple] = set()
    for _ in range(20_000):
        open_pairs |= pairs(candidate())
    rows = []
    while open_pairs:
        best = max((candidate() for _ in range(60)), key=lambda row: len(pairs(row) & open_pairs))
        gained = pairs(best) & open_pairs
        if gained:
            rows.append(best)
            open_pairs -= gained
    return rows
