"""Cut a corpus into train, validation and test, by shares of its sequences."""

from __future__ import annotations

import re
from itertools import accumulate, pairwise

from megalith.errors import UserError

_SHARE = re.compile(r"\d+\.?\d*|\.\d+", re.ASCII)


def parse_split(split: str) -> tuple[float, float, float]:
    """Shares of train, validation, test that sum to 1, of a text such as "969,30,1"; missing ones are 0.

    Raises UserError where it is anything but one to three plain decimal numbers, or all are zero. (Megatron picks
    digits out of the text: there "99,-1,2" means 99,1,2 and "1e-3" is two numbers.)
    """
    advice = 'write up to three shares of train, validation and test, such as "98,2,0"'
    parts = [part.strip() for part in split.split(",")]
    wrong = [part for part in parts if not _SHARE.fullmatch(part)]
    if wrong:
        raise UserError(f"split={split!r}: {wrong[0]!r} is not a plain number from 0 on; {advice}")
    shares = [float(part) for part in parts]
    if len(shares) > 3 or sum(shares) == 0:
        raise UserError(f"split={split!r} has {len(shares)} shares that sum to {sum(shares):g}; {advice}")
    train, validation, test = (share / sum(shares) for share in [*shares, 0.0, 0.0][:3])
    return train, validation, test


def split_ranges(split: str, num_sequences: int) -> tuple[range, range, range]:
    """Sequences of train, validation and test: contiguous, in file order, not shuffled. An empty range is no split.

    The ends are round(share so far * num_sequences), as in Megatron.
    """
    ends = [round(end * num_sequences) for end in accumulate(parse_split(split), initial=0.0)]
    train, validation, test = (range(start, end) for start, end in pairwise(ends))
    return train, validation, test
