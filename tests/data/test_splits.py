"""Splits: Megatron's ranges, and a readable error where Megatron guesses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from megalith.data.splits import split_ranges
from megalith.errors import UserError

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "megatron_order.json").read_text())


@pytest.mark.parametrize(
    ("split", "count", "case"),
    [
        ("969,30,1", 1000, "split_969_30_1_n1000"),
        ("969,30,1", 20, "split_969_30_1_n20"),
        ("98,2,0", 50, "split_98_2_0_n50"),
    ],
)
def test_golden_ranges(split: str, count: int, case: str) -> None:
    expected = [range(*bounds) if bounds else range(count, count) for bounds in GOLDEN[case]]
    assert list(split_ranges(split, count)) == expected


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 100, 12_345, 10**12 + 7])
@pytest.mark.parametrize("split", ["98,2,0", "1,0,0", "1,1,1", "1,0,1", "0.9,0.05,0.05", ".5,.5,0.", "969, 30, 1"])
def test_ranges_cover_all_sequences_once(split: str, count: int) -> None:
    train, validation, test = split_ranges(split, count)
    assert (train.start, train.stop, validation.stop, test.stop) == (0, validation.start, test.start, count)


@pytest.mark.parametrize(
    "split",
    [
        *GOLDEN["split_must_be_rejected"],
        "",
        ",,",
        "1,",
        "1,1",
        "1,1,1,1",
        "nan,1,1",
        "inf,1,1",
        "1_0,1,1",
        "90%,10%,0",
        "-0,1,1",
        "\uff19,1,0",
    ],
)
def test_what_is_no_split_is_refused(split: str) -> None:
    with pytest.raises(UserError, match=rf"split={re.escape(split)} (must|holds|leaves) .* choose ") as caught:
        split_ranges(split, 100)
    split_ranges(str(caught.value).rpartition("choose ")[2], 100)


def test_the_way_out_keeps_what_was_meant() -> None:
    with pytest.raises(UserError, match=r"written plainly; choose 0\.999,0\.001,0$"):
        split_ranges("0.999,1e-3,0", 100)
