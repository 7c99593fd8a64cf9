"""The learning rate of every step in closed form, so that a resumed run needs no scheduler state.

Steps count from 1, the first step. With W = `warmup_steps`, T = `train_steps`, r = `min_lr_ratio`:

- step <= W: lr * step / W, so that the first step is never at 0 and step W is at lr exactly;
- `constant`: lr from there on;
- `cosine`: lr * (r + (1 - r) * (1 + cos(pi * (step - W) / (T - W))) / 2) (arXiv:1608.03983);
- `wsd` (warm-up, stable, decay; arXiv:2404.06395): lr until T - `decay_steps`, then a straight line to lr * r.

End point: at step T and after it `cosine` and `wsd` are at lr * r exactly, even where the warm-up reaches that far.
"""

from __future__ import annotations

from math import cos, pi

from megalith.config.recipe import Schedule, ScheduleName


def lr_at(schedule: Schedule, lr: float, step: int, train_steps: int) -> float:
    """Learning rate of `step` (1 is the first) in a run of `train_steps` steps; `lr` is the peak.

    Raises ValueError for a step below 1.
    """
    if step < 1:
        raise ValueError(f"step={step}: steps count from 1, the first step")
    if schedule.name is not ScheduleName.CONSTANT and step >= train_steps:
        return lr * schedule.min_lr_ratio
    if step <= schedule.warmup_steps:
        return lr * step / schedule.warmup_steps
    return lr * _share_after_warmup(schedule, step, train_steps)


def _share_after_warmup(schedule: Schedule, step: int, train_steps: int) -> float:
    """Share of the peak that is left at `step`, between `min_lr_ratio` and 1."""
    if schedule.name is ScheduleName.CONSTANT:
        return 1.0
    if schedule.name is ScheduleName.COSINE:
        progress = (step - schedule.warmup_steps) / (train_steps - schedule.warmup_steps)
        left = 0.5 * (1.0 + cos(pi * progress))
    else:
        left = min(1.0, (train_steps - step) / schedule.decay_steps) if schedule.decay_steps > 0 else 1.0
    return schedule.min_lr_ratio + (1.0 - schedule.min_lr_ratio) * left
