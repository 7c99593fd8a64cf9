"""Learning rates against closed forms worked out by hand."""

from math import cos, pi

import pytest

from megalith.config.recipe import Schedule, ScheduleName
from megalith.training.schedule import lr_at

LR, STEPS = 1e-3, 100
COSINE = Schedule(name=ScheduleName.COSINE, warmup_steps=10, min_lr_ratio=0.1)
WSD = Schedule(name=ScheduleName.WSD, warmup_steps=10, decay_steps=20, min_lr_ratio=0.1)
CONSTANT = Schedule(name=ScheduleName.CONSTANT, warmup_steps=10)

TABLE = [
    (COSINE, 1, 1e-4),
    (COSINE, 5, 5e-4),
    (COSINE, 10, 1e-3),
    (COSINE, 11, 1e-4 + 9e-4 * (1 + cos(pi / 90)) / 2),
    (COSINE, 55, 5.5e-4),
    (COSINE, 99, 1e-4 + 9e-4 * (1 + cos(pi * 89 / 90)) / 2),
    (COSINE, 100, 1e-4),
    (COSINE, 101, 1e-4),
    (WSD, 1, 1e-4),
    (WSD, 10, 1e-3),
    (WSD, 80, 1e-3),
    (WSD, 81, 1e-4 + 9e-4 * 19 / 20),
    (WSD, 90, 5.5e-4),
    (WSD, 99, 1e-4 + 9e-4 / 20),
    (WSD, 100, 1e-4),
    (WSD, 1000, 1e-4),
    (CONSTANT, 1, 1e-4),
    (CONSTANT, 10, 1e-3),
    (CONSTANT, 100, 1e-3),
    (CONSTANT, 101, 1e-3),
]


@pytest.mark.parametrize("schedule, step, expected", TABLE, ids=lambda v: getattr(v, "name", v))
def test_closed_form(schedule, step, expected):
    assert lr_at(schedule, LR, step, STEPS) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("name", [ScheduleName.COSINE, ScheduleName.WSD])
@pytest.mark.parametrize("ratio", [0.0, 0.1, 1 / 3, 1.0])
@pytest.mark.parametrize("warmup, decay", [(0, 1), (10, 90), (99, 1), (100, 0)])
def test_the_end_point_is_exact(name, ratio, warmup, decay):
    schedule = Schedule(name=name, warmup_steps=warmup, decay_steps=decay, min_lr_ratio=ratio)
    assert lr_at(schedule, LR, STEPS, STEPS) == LR * ratio
    assert lr_at(schedule, LR, STEPS + 1, STEPS) == LR * ratio


@pytest.mark.parametrize("name", list(ScheduleName))
@pytest.mark.parametrize("warmup", [0, 1, 2, 99])
def test_no_step_but_the_last_is_at_zero(name, warmup):
    schedule = Schedule(name=name, warmup_steps=warmup, decay_steps=1, min_lr_ratio=0.0)
    assert all(0 < lr_at(schedule, LR, step, STEPS) <= LR for step in range(1, STEPS))


def test_without_warm_up_wsd_starts_at_the_peak():
    assert lr_at(Schedule(name=ScheduleName.WSD, decay_steps=20), LR, 1, STEPS) == LR


def test_step_zero_is_refused():
    with pytest.raises(ValueError, match="step=0"):
        lr_at(COSINE, LR, 0, STEPS)
