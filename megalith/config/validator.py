"""Judge a recipe before anything starts: each fault names the value, the rule and the way out.

The trainer refuses what is refused here and the planner proposes nothing else.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from megalith.config.layout_rules import LAYOUT_RULES
from megalith.config.notes import NOTES
from megalith.config.partial import judged, without
from megalith.config.ranges import RANGES
from megalith.config.recipe import Recipe
from megalith.config.rules import RULES


def faults(recipe: Recipe, world_size: int | None) -> list[str]:
    """Every fault of `recipe` on `world_size` processes; with None, every fault that no number of processes mends."""
    out_of_range = {}
    for allowed in RANGES:
        message = judged(lambda allowed=allowed: allowed.fault(_value(recipe, allowed.path)))
        if message:
            out_of_range[allowed.path] = message
    usable = without(recipe, out_of_range)  # a rule between two fields has no say where one of them is out of range
    found = list(out_of_range.values())
    if world_size is not None and world_size < 1:
        found.append(f"world_size={world_size} must be at least 1; choose 1")
        world_size = None
    verdicts = [judged(rule, usable) for rule in RULES] + [judged(rule, usable, world_size) for rule in LAYOUT_RULES]
    return found + [message for message in verdicts if message]


def notes(recipe: Recipe) -> list[str]:
    """Choices in a faultless recipe that have no effect, each with the reason."""
    return [message for note in NOTES if (message := note(recipe))]


def _value(recipe: Recipe, path: str) -> Any:
    """What stands at a dotted path; None below a section that is not given."""
    return reduce(lambda node, name: None if node is None else getattr(node, name), path.split("."), recipe)
