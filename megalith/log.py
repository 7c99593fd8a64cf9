"""What a run says to the person who started it: once, not once per process."""

from __future__ import annotations

import os
import sys


def is_first_process() -> bool:
    """Whether this process speaks for the run: rank 0 by torchrun's RANK, or the only one there is."""
    return os.environ.get("RANK", "0") == "0"


def say(text: str) -> None:
    """Print `text` to standard output from the first process, at once."""
    if is_first_process():
        print(text, flush=True)


def warn(text: str) -> None:
    """Print `text` to standard error from the first process, marked as a warning."""
    if is_first_process():
        print(f"warning: {text}", file=sys.stderr, flush=True)
