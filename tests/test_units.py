"""Numbers are written as people read them, also at the edges between two units."""

from __future__ import annotations

import pytest

from megalith.units import format_bytes, format_count, format_duration, format_flops


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1000, "1000 B"),
        (1024, "1.00 KiB"),
        (1536 * 2**20, "1.50 GiB"),
        (80 * 2**30, "80.0 GiB"),
        (1023.9 * 2**20, "1.00 GiB"),
        (-(2**20), "-1.00 MiB"),
    ],
)
def test_bytes(value: float, text: str) -> None:
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (999.9, "1.00 K"),
        (125_950_000, "126 M"),
        (1.3177e9, "1.32 B"),
        (1.008e12, "1.01 T"),
        (2.5, "2.50"),
    ],
)
def test_counts(value: float, text: str) -> None:
    assert format_count(value) == text


def test_flops() -> None:
    assert format_flops(312e12, per_second=True) == "312 TFLOP/s"
    assert format_flops(1.5e18) == "1.50 EFLOP"
    assert format_flops(0) == "0.00 FLOP"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0853, "85 ms"),
        (0.9999, "1.00 s"),
        (59.96, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599.9, "1 h 00 min"),
        (12000, "3 h 20 min"),
        (4 * 86400 + 7200, "4 d 02 h"),
        (-2, "-2.00 s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
