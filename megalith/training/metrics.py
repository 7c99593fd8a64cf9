"""Write what each step measured as JSON lines that continue without a gap or a double point when the run is resumed.

One object a line: `step, loss, grad_norm, lr, tokens, seconds, tokens_per_s, consumed_samples` for a training step, and
`step, validation_set, validation_loss, validation_tokens` for each validation set. JSON has no NaN: a number that is
not finite is written as the string "nan", "inf" or "-inf", which `float()` reads back.
"""

from __future__ import annotations

import json
import os
from io import TextIOWrapper
from math import isfinite
from pathlib import Path
from typing import Any

from megalith.checkpoint.atomic import write_text
from megalith.checkpoint.store import Position
from megalith.errors import UserError
from megalith.training.hooks import Hook, StepDone

FILE_NAME = "metrics.jsonl"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Every whole line of the file, in order; a last line that a killed process left unfinished is not one.

    Raises UserError for a line that is no measurement.
    """
    if not path.exists():
        return []
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            lines += [_measurement(text)] if text.strip() else []
        except ValueError as error:
            raise UserError(f"{path}, line {number} is damaged ({error}); remove the line, or the file") from error
    return lines


def _measurement(text: bytes) -> dict[str, Any]:
    line = json.loads(text)
    if not isinstance(line, dict) or not isinstance(line.get("step"), int):
        raise ValueError("it names no step")
    return line


class MetricsWriter(Hook):
    """Appends to `OUTPUT/metrics.jsonl`; flushed each line, forced to disk at each checkpoint."""

    def __init__(self, output: Path) -> None:
        self.path = output / FILE_NAME
        self._stream: TextIOWrapper | None = None

    def on_start(self, position: Position) -> None:
        """Keep the lines up to the step that the run resumes from; later ones will be written again."""
        kept = [line for line in read_metrics(self.path) if line["step"] <= position.step]
        write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))
        self._stream = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 (closed in on_end)

    def after_step(self, done: StepDone) -> None:
        self._write(
            step=done.step,
            loss=done.loss,
            grad_norm=done.grad_norm,
            lr=done.lr,
            tokens=done.tokens,
            seconds=done.seconds,
            tokens_per_s=done.tokens_per_s,
            consumed_samples=done.consumed_samples,
        )

    def on_validation(self, step: int, loss: float, tokens: int, name: str = "validation") -> None:
        self._write(step=step, validation_set=name, validation_loss=loss, validation_tokens=tokens)

    def on_checkpoint(self, step: int) -> None:
        if self._stream is not None:
            self._stream.flush()
            os.fsync(self._stream.fileno())

    def on_end(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _write(self, **values: float | str) -> None:
        if self._stream is None:
            raise RuntimeError("metrics are written between on_start and on_end")
        written = {k: v if isinstance(v, str) or isfinite(v) else str(float(v)) for k, v in values.items()}
        self._stream.write(json.dumps(written) + "\n")
        self._stream.flush()
