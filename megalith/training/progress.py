"""Show how a run goes: a live bar on a terminal, a line every few steps elsewhere."""

from __future__ import annotations

from collections import deque

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from megalith.checkpoint.store import Position
from megalith.training.hooks import Hook, StepDone
from megalith.units import format_count, format_duration

WINDOW_STEPS = 50


class ProgressDisplay(Hook):
    """step/total, loss, learning rate, gradient norm, tokens/s and time left, the last two over the latest steps."""

    def __init__(self, interval_steps: int, console: Console | None = None) -> None:
        self.interval_steps = interval_steps
        self.console = console or Console(highlight=False)
        self._recent: deque[StepDone] = deque(maxlen=WINDOW_STEPS)
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def on_start(self, position: Position) -> None:
        if position.step:
            self._say(f"resumed after step {position.step} ({position.consumed_samples} samples read)")
        if self.console.is_terminal:
            self._bar = Progress(
                BarColumn(24), TextColumn("{task.description}"), console=self.console, refresh_per_second=2
            )
            self._task = self._bar.add_task("first step ...", total=None, completed=position.step)
            self._bar.start()

    def after_step(self, done: StepDone) -> None:
        self._recent.append(done)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done.step, total=done.train_steps, description=self.line(done))
        elif self._is_due(done):
            self._say(self.line(done))

    def on_validation(self, step: int, loss: float, tokens: int, name: str = "validation") -> None:
        of_set = "" if name == "validation" else f" of {name}"
        self._say(f"step {step}  validation loss{of_set} {loss:.4f} over {format_count(tokens)} tokens")

    def on_checkpoint(self, step: int) -> None:
        self._say(f"step {step}  saving a checkpoint")

    def on_end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def line(self, done: StepDone) -> str:
        """The step in one line; values of exactly 0 are shown like any other."""
        seconds = sum(one.seconds for one in self._recent)
        tokens = sum(one.tokens for one in self._recent)
        left = (done.train_steps - done.step) * seconds / len(self._recent)
        return (
            f"step {done.step}/{done.train_steps}  loss {done.loss:.4f}  lr {done.lr:.3g}  "
            f"grad norm {done.grad_norm:.3g}  {format_count(tokens / seconds)} tokens/s  ETA {format_duration(left)}"
        )

    def _is_due(self, done: StepDone) -> bool:
        first = len(self._recent) == 1
        return first or done.step % self.interval_steps == 0 or done.step == done.train_steps

    def _say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)
