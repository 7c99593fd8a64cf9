"""A run that stops anywhere continues bitwise, in one process and in two that share every layer."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from megalith.checkpoint import folder, store
from megalith.checkpoint.reader import TableReader
from megalith.checkpoint.state import model_state, optimizer_state
from megalith.checkpoint.store import Position
from megalith.config.reader import read_recipe
from megalith.data.loader import StepLoader
from megalith.errors import UserError
from megalith.opening.model import open_model
from megalith.training.build import build_run, train_recipe
from megalith.training.hooks import Hook, StepDone
from megalith.training.interruption import Interrupted
from megalith.training.metrics import read_metrics
from megalith.training.world import World

LIMIT_SECONDS = 120
MEASURED = ("step", "loss", "grad_norm", "lr", "tokens", "consumed_samples", "validation_loss", "validation_tokens")


class SignalAfter(Hook):
    """Sends a signal to this process after a step."""

    def __init__(self, step: int, signum: int) -> None:
        self.step, self.signum = step, signum

    def after_step(self, done: StepDone) -> None:
        if done.step == self.step:
            os.kill(os.getpid(), self.signum)


def stored_tensors(output: Path, step: int) -> dict[str, torch.Tensor]:
    reader = TableReader(folder.step_folder(output, step))
    table = reader.read_metadata().state_dict_metadata
    entries = {key: entry for key, entry in table.items() if isinstance(entry, TensorStorageMetadata)}
    state = {key: torch.full(entry.size, float("nan"), dtype=entry.properties.dtype) for key, entry in entries.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DCP warns that it reads in one process, as it was asked to
        load(state, storage_reader=reader, no_dist=True)
    return state


def assert_same_run(one: Path, other: Path, step: int) -> None:
    """Every tensor of the checkpoint and every measured figure are equal to the last bit."""
    first, second = stored_tensors(one, step), stored_tensors(other, step)
    assert first.keys() == second.keys() and any(key.endswith("exp_avg_sq") for key in first)
    for key in first:
        assert torch.equal(first[key], second[key]), key
    lines, others = ([{k: line.get(k) for k in MEASURED} for line in read(run)] for run in (one, other))
    assert lines == others and [line["step"] for line in lines if line["loss"]] == list(range(1, step + 1))


def read(output: Path) -> list[dict]:
    return read_metrics(output / "metrics.jsonl")


def copy_up_to(source: Path, target: Path, step: int) -> None:
    """What a run would have left if it had been killed some time after the checkpoint of `step`."""
    shutil.copytree(source, target)
    for later in folder.steps(target):
        if later > step:
            shutil.rmtree(folder.step_folder(target, later))


@pytest.mark.parametrize("stop_after, signum", [(1, signal.SIGTERM), (3, signal.SIGINT), (5, signal.SIGTERM)])
def test_one_process_stopped_by_a_signal_continues_bitwise(write_recipe, tmp_path, stop_after, signum):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train_recipe(read_recipe(write_recipe(whole), []), display=False)
    recipe = read_recipe(write_recipe(broken), [])
    with pytest.raises(Interrupted, match=f"after step {stop_after}"):
        train_recipe(recipe, [SignalAfter(stop_after, signum)], display=False)
    assert folder.steps(broken)[-1] == stop_after
    torch.manual_seed(0)
    train_recipe(recipe, display=False)
    assert_same_run(whole, broken, 6)


def forget_the_data_position(monkeypatch):
    monkeypatch.setattr(StepLoader, "seek", lambda self, *position: None)


def forget_the_moments(monkeypatch):
    whole = store.load
    monkeypatch.setattr(store, "load", lambda checkpoint, model, optimizer: whole(checkpoint, model))


def forget_the_weights(monkeypatch):
    monkeypatch.setattr(store, "load", lambda checkpoint, model, optimizer: folder.read_manifest(checkpoint))


@pytest.mark.parametrize("fault", [forget_the_data_position, forget_the_moments, forget_the_weights])
def test_the_comparison_sees_what_a_resume_may_forget(write_recipe, tmp_path, monkeypatch, fault):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train_recipe(read_recipe(write_recipe(whole), []), display=False)
    copy_up_to(whole, broken, 3)
    fault(monkeypatch)
    train_recipe(read_recipe(write_recipe(broken), []), display=False)
    with pytest.raises(AssertionError):
        assert_same_run(whole, broken, 6)


def test_a_damaged_newest_checkpoint_costs_steps_not_the_run(write_recipe, tmp_path, capsys):
    whole, damaged = tmp_path / "whole", tmp_path / "damaged"
    train_recipe(read_recipe(write_recipe(whole), []), display=False)
    shutil.copytree(whole, damaged)
    payload = folder.step_folder(damaged, 6) / "__0_0.distcp"
    payload.write_bytes(payload.read_bytes()[:-1])
    train_recipe(read_recipe(write_recipe(damaged), []), display=False)
    assert "passed over" in capsys.readouterr().err
    assert_same_run(whole, damaged, 6)


def test_a_finished_run_says_so_and_changes_nothing(write_recipe, tmp_path, capsys):
    recipe = read_recipe(write_recipe(tmp_path / "run"), [])
    train_recipe(recipe, display=False)
    before = read(tmp_path / "run")
    train_recipe(recipe, display=False)
    assert "all 6 steps are done" in capsys.readouterr().out
    assert read(tmp_path / "run") == before


def test_another_model_or_optimizer_in_the_same_folder_is_refused(write_recipe, tmp_path):
    path = write_recipe(tmp_path / "run", train_steps=1, schedule={"name": "constant"})
    train_recipe(read_recipe(path, []), display=False)
    with pytest.raises(UserError, match=r"model.num_layers: 2 there, 3 here"):
        train_recipe(read_recipe(path, ["model.num_layers=3", "train_steps=2"]), display=False)
    with pytest.raises(UserError, match=r"state of optimizer.name=adamw, not of sgd"):
        train_recipe(read_recipe(path, ["optimizer.name=sgd", "train_steps=2"]), display=False)


def run_train(recipe: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the public command with a wall-clock limit."""
    command = [sys.executable, "-m", "megalith", "train", str(recipe), *arguments]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(command, env=env, text=True, capture_output=True, timeout=LIMIT_SECONDS)


def megalith_train(recipe: Path, *arguments: str) -> str:
    """What a run that must succeed printed."""
    done = run_train(recipe, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_two_processes_continue_bitwise_and_open_in_one(write_recipe, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    layout = {"tensor_parallel_size": 2, "sequence_parallel": True}
    choices = {"layout": layout, "recompute": "selective", "attention": "unfused"}
    megalith_train(write_recipe(whole, **choices), "--nproc", "2")
    copy_up_to(whole, broken, 3)
    output = megalith_train(write_recipe(broken, **choices), "--nproc", "2")
    assert "resumed after step 3 (12 samples read)" in output
    assert_same_run(whole, broken, 6)

    state = stored_tensors(whole, 6)
    opened = open_model(whole)
    for name, parameter in opened.model.named_parameters():
        assert torch.equal(parameter, state[f"model.{name}"]), name
    assert opened.step == 6 and opened.tokenizer.vocab_size == 300

    # one process takes over what two had: bitwise the same state, none of it fresh
    alone = tmp_path / "alone"
    copy_up_to(whole, alone, 3)
    run = build_run(read_recipe(write_recipe(alone), []), World(), torch.device("cpu"), display=False)
    loaded, state = model_state(run.model) | optimizer_state(run.model, run.optimizer), stored_tensors(whole, 3)
    assert loaded.keys() == state.keys() and run.position == Position(3, 12)
    for key in state:
        assert torch.equal(loaded[key], state[key]), key


def test_a_save_that_fails_on_one_rank_ends_all_and_is_the_last_thing_said(write_recipe, tmp_path):
    output = tmp_path / "run"
    output.mkdir()
    (output / "checkpoints").write_text("a file where a folder is needed")
    done = run_train(write_recipe(output, layout={"tensor_parallel_size": 2}), "--nproc", "2")
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"megalith: {output}/checkpoints/") and "Not a directory; a file stands where" in last
