"""What hangs on the training loop: metrics, display and plots see each step here and never change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megalith.checkpoint.store import Position


@dataclass(frozen=True)
class StepDone:
    """One finished step. `tokens`: sequence positions that all ranks read in it; `seconds`: its wall time."""

    step: int
    train_steps: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    seconds: float
    consumed_samples: int

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the whole run per second: global batch times sequence length over wall time, in any layout."""
        return self.tokens / self.seconds


class Hook:
    """Override what is needed; on every rank each call happens at the same place of the run."""

    def on_start(self, position: Position) -> None:
        """Before the first step; `position` is where the run stands, step 0 in a fresh one."""

    def after_step(self, done: StepDone) -> None:
        """After the optimizer step, before validation and checkpoint of the same step."""

    def on_validation(self, step: int, loss: float, tokens: int, name: str = "validation") -> None:
        """Mean `loss` per token over the batches of the set `name`, `tokens` of which were scored."""

    def on_checkpoint(self, step: int) -> None:
        """Before the checkpoint of `step` gets its name: what belongs to the steps up to it must be on disk now."""

    def on_end(self) -> None:
        """When the loop is left, also by an error."""


class Hooks(Hook):
    """Several hooks as one, called in order; at the end all are called, even if one fails."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self.hooks = tuple(hooks)

    def on_start(self, position: Position) -> None:
        for hook in self.hooks:
            hook.on_start(position)

    def after_step(self, done: StepDone) -> None:
        for hook in self.hooks:
            hook.after_step(done)

    def on_validation(self, step: int, loss: float, tokens: int, name: str = "validation") -> None:
        for hook in self.hooks:
            hook.on_validation(step, loss, tokens, name)

    def on_checkpoint(self, step: int) -> None:
        for hook in self.hooks:
            hook.on_checkpoint(step)

    def on_end(self) -> None:
        errors = []
        for hook in self.hooks:
            try:
                hook.on_end()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
