"""The run from its first step to its last: train, validate, save, and leave what the same command continues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from megalith.checkpoint import store
from megalith.checkpoint.store import Position
from megalith.config.recipe import Recipe
from megalith.data.loader import MicroBatch, StepLoader
from megalith.errors import UserError
from megalith.models.decoder import Decoder
from megalith.training.hooks import Hook, StepDone
from megalith.training.interruption import Interrupted, Interruption
from megalith.training.step import TrainStep
from megalith.training.validation import validation_loss


@dataclass
class Run:
    """What a recipe was built into. `position` moves with each step; `recipe_tree` goes into each checkpoint."""

    recipe: Recipe
    recipe_tree: dict[str, Any]
    device: torch.device
    mesh: DeviceMesh | None
    model: Decoder
    optimizer: torch.optim.Optimizer
    train_step: TrainStep
    loader: StepLoader
    validation_sets: Mapping[str, Callable[[], Iterable[MicroBatch]]]
    hooks: Hook
    tokenizer_digest: str | None
    position: Position

    @property
    def output(self) -> Path:
        return Path(self.recipe.output)


def train(run: Run) -> None:
    """Train from `run.position` to `train_steps`, with a checkpoint at every interval and at the end.

    Raises Interrupted after a signal, once the step is finished and saved, and UserError where the loss is not finite.
    """
    recipe = run.recipe
    saved = run.position.step
    with Interruption() as interruption:
        try:
            run.hooks.on_start(run.position)
            for step in range(run.position.step + 1, recipe.train_steps + 1):
                one_step(run, step)
                if is_due(recipe.validation.interval_steps, step):
                    validate(run)
                if is_due(recipe.checkpoint.interval_steps, step) or step == recipe.train_steps:
                    save(run)
                    saved = step
                if signum := interruption.agreed(run.device):
                    if saved < step:
                        save(run)
                    raise Interrupted(signum, step)
        finally:
            run.hooks.on_end()


def one_step(run: Run, step: int) -> None:
    """Train one step and tell the hooks. Raises UserError where the loss or the gradient norm is not finite."""
    batch = run.recipe.batch
    started = perf_counter()
    micro_batches = run.loader.next_step()
    check_ids(micro_batches, run.recipe.model.vocab_size)
    report = run.train_step(step, micro_batches)
    seconds = perf_counter() - started
    run.position = Position(step, run.loader.consumed_samples, asdict(run.loader.position))
    run.hooks.after_step(
        StepDone(
            step=step,
            train_steps=run.recipe.train_steps,
            loss=report.loss,
            grad_norm=report.grad_norm,
            lr=report.lr,
            tokens=batch.global_batch_size * batch.seq_len,
            seconds=seconds,
            consumed_samples=run.position.consumed_samples,
        )
    )
    if not (isfinite(report.loss) and isfinite(report.grad_norm)):
        raise UserError(
            f"step {step}: loss={report.loss}, gradient norm={report.grad_norm}; training needs finite ones. "
            "The last checkpoint is from before it: continue with a smaller optimizer.lr or optimizer.clip_grad_norm"
        )


def check_ids(micro_batches: Sequence[MicroBatch], vocab_size: int) -> None:
    """Raises UserError for an id without a row: tensor ranks would each take it for another's and train on nothing."""
    highest = max(int(ids.max()) for one in micro_batches for ids in (one.tokens_BS, one.targets_BS))
    if highest >= vocab_size:
        raise UserError(
            f"the training data holds token {highest}, which model.vocab_size={vocab_size} has no row for; "
            "`megalith data inspect PREFIX --verify` tells a damaged file, else choose a larger model.vocab_size"
        )


def is_due(interval_steps: int, step: int) -> bool:
    """Whether something that happens every `interval_steps` steps (0: never) happens after `step`."""
    return interval_steps > 0 and step % interval_steps == 0


def validate(run: Run) -> None:
    """Measure the loss on each validation set and tell the hooks."""
    for name, batches in run.validation_sets.items():
        loss, tokens = validation_loss(run.model, batches(), run.mesh, run.device)
        run.hooks.on_validation(run.position.step, loss, tokens, name)


def save(run: Run) -> None:
    """Write a checkpoint of where the run stands."""
    run.hooks.on_checkpoint(run.position.step)
    store.save(
        run.output,
        run.model,
        run.optimizer,
        run.position,
        run.recipe_tree,
        run.recipe.checkpoint.keep,
        run.tokenizer_digest,
    )
