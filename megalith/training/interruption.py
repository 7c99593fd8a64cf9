"""Turn Ctrl-C and SIGTERM into a checkpoint and a clean end, agreed by all ranks at the same step."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType

import torch
import torch.distributed as dist

IMPATIENCE_SECONDS = 2.0  # launchers and terminals may both deliver one Ctrl-C; a later one is a second wish


class Interrupted(KeyboardInterrupt):
    """A signal ended the run after a whole step; its checkpoint is written and the same command continues."""

    def __init__(self, signum: int, step: int) -> None:
        super().__init__(
            f"{signal.Signals(signum).name}: saved after step {step}; the same command continues from there"
        )
        self.signum = signum


class Interruption:
    """While entered, remembers SIGINT and SIGTERM; a second one after 2 s raises KeyboardInterrupt at once."""

    def __init__(self) -> None:
        self._signum = 0
        self._arrived = 0.0
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._previous[signum] = signal.signal(signum, self._remember)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]

    def agreed(self, device: torch.device) -> int:
        """The signal that any rank got, 0 for none; every rank calls it after each step and all get the same answer."""
        if not dist.is_initialized():
            return self._signum
        seen = torch.tensor(self._signum, device=device)
        dist.all_reduce(seen, dist.ReduceOp.MAX)
        return int(seen.item())

    def _remember(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._signum and now - self._arrived > IMPATIENCE_SECONDS:
            raise KeyboardInterrupt
        if not self._signum:
            self._signum, self._arrived = signum, now
