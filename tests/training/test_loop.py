"""The loop around the step: what happens when, and what a run that goes wrong leaves behind."""

from __future__ import annotations

from math import isnan
from pathlib import Path

import pytest
import torch

import megalith
from megalith.checkpoint import folder
from megalith.checkpoint.store import Position
from megalith.config.reader import read_recipe
from megalith.config.recipe import Batch
from megalith.data.loader import MicroBatch, validation_batches
from megalith.data.samples import GPTSamples
from megalith.errors import UserError
from megalith.inference.generate import generate
from megalith.inference.sampling import Sampling
from megalith.tokens.indexed import IndexedTokens
from megalith.training.build import build_run, train_recipe
from megalith.training.hooks import Hook, StepDone
from megalith.training.loop import Run, is_due, train
from megalith.training.metrics import read_metrics
from megalith.training.validation import validation_loss
from megalith.training.world import World

CPU = torch.device("cpu")


class Calls(Hook):
    """Notes what is called when."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_start(self, position: Position) -> None:
        self.calls.append(f"start {position.step}")

    def after_step(self, done: StepDone) -> None:
        self.calls.append(f"step {done.step}")

    def on_validation(self, step: int, loss: float, tokens: int, name: str = "validation") -> None:
        self.calls.append(f"validation {step} {tokens}")

    def on_checkpoint(self, step: int) -> None:
        self.calls.append(f"checkpoint {step}")

    def on_end(self) -> None:
        self.calls.append("end")


def build(path: Path, *overrides: str, hooks: tuple[Hook, ...] = ()) -> Run:
    return build_run(read_recipe(path, list(overrides)), World(), CPU, hooks, display=False)


def test_the_order_of_a_run(write_recipe, tmp_path):
    calls = Calls()
    train(build(write_recipe(tmp_path / "run"), "train_steps=4", hooks=(calls,)))
    assert calls.calls == [
        *["start 0", "step 1", "step 2", "step 3", "validation 3 128", "checkpoint 3", "step 4", "checkpoint 4", "end"]
    ]


def test_an_interval_of_zero_is_never_due():
    assert [step for step in range(1, 7) if is_due(3, step)] == [3, 6]
    assert not any(is_due(0, step) for step in range(1, 7))


def test_a_broken_weight_stops_the_run_at_once_and_the_last_checkpoint_stays(write_recipe, tmp_path):
    class Break(Hook):
        def after_step(self, done: StepDone) -> None:
            if done.step == 4:
                next(run.model.parameters()).data.fill_(float("nan"))

    output = tmp_path / "run"
    run = build(write_recipe(output), hooks=(Break(),))
    with pytest.raises(UserError, match="step 5: loss=nan"):
        train(run)
    assert folder.steps(output) == [3]
    assert isnan(float(read_metrics(output / "metrics.jsonl")[-1]["loss"]))
    train_recipe(read_recipe(write_recipe(output), []), display=False)
    assert [line["step"] for line in read_metrics(output / "metrics.jsonl") if "loss" in line] == [1, 2, 3, 4, 5, 6]


def unequal_batches(corpus: Path, micro_batch_size: int) -> tuple[GPTSamples, list[MicroBatch]]:
    """Ten samples; the last micro-batch of a size that does not divide them is partly masked."""
    tokens = IndexedTokens(corpus / "tokens")
    samples = GPTSamples(tokens, range(20), seq_len=16, seed=0)
    batch = Batch(seq_len=16, micro_batch_size=micro_batch_size, global_batch_size=micro_batch_size)
    return samples, list(validation_batches(samples, batch, 0, 1, 10))


@pytest.mark.parametrize("micro_batch_size", [1, 3, 4, 10])
def test_validation_is_the_mean_over_tokens_however_they_are_batched(write_recipe, corpus, tmp_path, micro_batch_size):
    model = build(write_recipe(tmp_path / "run")).model
    samples, micro_batches = unequal_batches(corpus, micro_batch_size)
    window = torch.stack([torch.from_numpy(samples[i]) for i in range(10)])
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(model(window[:, :-1]), window[:, 1:].flatten()).item()
    loss, tokens = validation_loss(model, micro_batches, None, CPU)
    assert tokens == 160 and loss == pytest.approx(expected, rel=1e-6)
    assert validation_loss(model, micro_batches, None, CPU)[0] == loss  # dropout stays off


def test_validation_and_generation_leave_training_as_it_was(write_recipe, corpus, tmp_path):
    plain, disturbed = build(write_recipe(tmp_path / "plain")), build(write_recipe(tmp_path / "disturbed"))
    _, micro_batches = unequal_batches(corpus, 3)
    for step in (1, 2, 3):
        one = plain.train_step(step, plain.loader.next_step())
        validation_loss(disturbed.model, micro_batches, None, CPU)
        list(generate(disturbed.model, [1, 2], 3, Sampling()))
        assert all(module.training for module in disturbed.model.modules())
        assert disturbed.train_step(step, disturbed.loader.next_step()) == one
    for p, q in zip(plain.model.parameters(), disturbed.model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_the_python_api_trains_and_opens(write_recipe, tmp_path):
    output = tmp_path / "run"
    megalith.train(read_recipe(write_recipe(output), ["train_steps=2", "schedule.warmup_steps=0"]), display=False)
    opened = megalith.open_model(output)
    assert opened.step == 2 and opened.config.num_kv_heads == 2


@pytest.mark.parametrize("change, message", [("model.vocab_size=299", "vocab_size=299"), ("data.tokenizer=x", "x")])
def test_a_tokenizer_that_does_not_fit_is_refused(write_recipe, tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        build(write_recipe(tmp_path / "run"), change)


def test_an_id_without_a_row_is_refused_before_it_is_trained_on(write_recipe, tmp_path):
    path = write_recipe(tmp_path / "run")
    run = build(path, "data.tokenizer=null", "model.vocab_size=100")
    with pytest.raises(UserError, match=r"holds token \d+, which model.vocab_size=100 has no row for"):
        train(run)
    assert read_metrics(tmp_path / "run" / "metrics.jsonl") == []
