"""How far a command over many bytes is: a bar on a terminal, a line now and then elsewhere; both on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from megalith.units import format_bytes, format_duration

_REDRAW_BYTES = 1 << 18  # a redraw costs more than reading some lines
_LINE_SECONDS = 10.0
_FIRST_LINE_SECONDS = 2.0


@contextmanager
def bytes_progress(label: str, total_bytes: int, then: str | None = None) -> Iterator[Callable[[int], None]]:
    """Yields what to tell each number of bytes done; shows the share, the rate and the time left.

    then: what goes on when all bytes are done.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield _Lines(label, total_bytes).add
        return
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=total_bytes)
        done = shown = 0

        def on_bytes(num_bytes: int) -> None:
            nonlocal done, shown
            done += num_bytes
            if done - shown >= _REDRAW_BYTES or done >= total_bytes:
                bar.update(task, completed=done, description=then if then and done >= total_bytes else label)
                shown = done

        yield on_bytes


class _Lines:
    """A line after two seconds, then one every ten."""

    def __init__(self, label: str, total_bytes: int) -> None:
        self.label, self.total_bytes, self.done = label, total_bytes, 0
        self.started = time.monotonic()
        self.next_line = self.started + _FIRST_LINE_SECONDS

    def add(self, num_bytes: int) -> None:
        self.done += num_bytes
        now = time.monotonic()
        if now >= self.next_line and self.done < self.total_bytes:
            print(self.line(now - self.started), file=sys.stderr, flush=True)
            self.next_line = now + _LINE_SECONDS

    def line(self, seconds: float) -> str:
        """Where it stands after `seconds`."""
        rate = self.done / seconds
        left = format_duration((self.total_bytes - self.done) / rate)
        return (
            f"{self.label}: {self.done / max(1, self.total_bytes):.0%} of {format_bytes(self.total_bytes)}, "
            f"{format_bytes(round(rate))}/s, ETA {left}"
        )
