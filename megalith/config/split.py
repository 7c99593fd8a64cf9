"""The split string `train,validation,test`: how a token file is shared out."""

from __future__ import annotations

import re
from decimal import Decimal
from math import isfinite

_PLAIN = re.compile(r"\d+\.?\d*|\.\d+", re.ASCII)  # Megatron reads "1e-3" as two numbers: refused, not guessed


def split_shares(split: str) -> tuple[float, float, float]:
    """Shares of train, validation and test as fractions that sum to 1, from text such as `98,2,0` or `0.999,0.001,0`.

    Raises ValueError, with a corrected string as way out, unless there are three plain decimal numbers, the first > 0.
    """
    numbers = [_number(part) for part in split.split(",")]
    usable = [0.0 if number is None else max(number, 0.0) for number in (*numbers, 0.0, 0.0)][:3]
    total = sum(usable)
    way_out = ",".join(map(_plain, usable)) if usable[0] > 0 and isfinite(total) else "98,2,0"
    if len(numbers) != 3:
        raise ValueError(f"holds {len(numbers)} numbers and must hold three: train, validation, test; choose {way_out}")
    if not all(_PLAIN.fullmatch(part.strip()) for part in split.split(",")):
        raise ValueError(f"must hold three finite numbers of at least 0, written plainly; choose {way_out}")
    if not usable[0] > 0:
        raise ValueError(f"leaves nothing to train on: its first number must be above 0; choose {way_out}")
    if not isfinite(total):
        raise ValueError(f"must hold three numbers with a finite sum; choose {way_out}")
    train, validation, test = usable
    return train / total, validation / total, test / total


def _number(text: str) -> float | None:
    """A finite number, or None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None


def _plain(number: float) -> str:
    """A number as decimal digits without an exponent: 98, 0.001."""
    return f"{Decimal(repr(number)).normalize():f}"
