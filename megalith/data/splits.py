"""Cut a corpus into train, validation and test, by shares of its sequences."""

from __future__ import annotations

from itertools import accumulate, pairwise

from megalith.config.split import split_shares
from megalith.errors import UserError


def split_ranges(split: str, num_sequences: int) -> tuple[range, range, range]:
    """Sequences of train, validation and test: contiguous, in file order, not shuffled. An empty range is no split.

    split: three shares such as "969,30,1". The ends are round(share so far * num_sequences), as in Megatron.

    Raises UserError where `split` is anything but three plain decimal numbers of which the first is above 0.
    """
    try:
        shares = split_shares(split)
    except ValueError as error:
        raise UserError(f"split={split} {error}") from error
    ends = [round(end * num_sequences) for end in accumulate(shares, initial=0.0)]
    train, validation, test = (range(start, end) for start, end in pairwise(ends))
    return train, validation, test
