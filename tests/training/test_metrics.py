"""Metrics keep every value and, after a resume, exactly one line per step."""

import io
import json
import math

import pytest
from rich.console import Console

from megalith.checkpoint.store import Position
from megalith.errors import UserError
from megalith.training.hooks import Hook, Hooks, StepDone
from megalith.training.metrics import MetricsWriter, read_metrics
from megalith.training.progress import ProgressDisplay


def done(step: int, **changes) -> StepDone:
    values = {"loss": 2.5, "grad_norm": 1.0, "lr": 1e-3, "tokens": 4096, "seconds": 0.5} | changes
    return StepDone(step=step, train_steps=10, consumed_samples=8 * step, **values)


def write_steps(folder, position: Position, steps: range) -> None:
    writer = MetricsWriter(folder)
    writer.on_start(position)
    for step in steps:
        writer.after_step(done(step, loss=float(step)))
        writer.on_validation(step, 1.0, 10)
    writer.on_checkpoint(steps[-1])
    writer.on_end()


def test_zeros_are_written(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.on_start(Position(0, 0))
    writer.after_step(done(1, loss=0.0, grad_norm=0.0, lr=0.0))
    writer.on_validation(1, 0.0, 0)
    writer.on_end()
    step, validation = read_metrics(tmp_path / "metrics.jsonl")
    assert (step["loss"], step["grad_norm"], step["lr"]) == (0.0, 0.0, 0.0)
    assert validation == {
        "step": 1,
        "validation_set": "validation",
        "validation_loss": 0.0,
        "validation_tokens": 0,
    }


def test_numbers_that_json_lacks_read_back_as_floats(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.on_start(Position(0, 0))
    writer.after_step(done(1, loss=math.nan, grad_norm=math.inf))
    writer.on_end()
    line = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert math.isnan(float(line["loss"])) and float(line["grad_norm"]) == math.inf


def test_resume_leaves_no_gap_and_no_double_point(tmp_path):
    write_steps(tmp_path, Position(0, 0), range(1, 8))
    with open(tmp_path / "metrics.jsonl", "a") as stream:
        stream.write('{"step": 8, "lo')  # the process was killed here
    write_steps(tmp_path, Position(4, 32), range(5, 11))
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 11))
    assert [line["step"] for line in lines if "validation_loss" in line] == list(range(1, 11))


def test_a_fresh_start_in_the_same_folder_begins_anew(tmp_path):
    write_steps(tmp_path, Position(0, 0), range(1, 4))
    write_steps(tmp_path, Position(0, 0), range(1, 3))
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl") if "loss" in line] == [1, 2]


def test_tokens_per_second_times_seconds_is_the_global_batch():
    one = done(3, tokens=8 * 512, seconds=0.25)
    assert one.tokens_per_s * one.seconds == 8 * 512


def test_plain_lines_at_the_interval_and_at_both_ends():
    output = io.StringIO()
    display = ProgressDisplay(4, Console(file=output, force_terminal=False, width=40, highlight=False))
    display.on_start(Position(0, 0))
    for step in range(1, 11):
        display.after_step(done(step, loss=0.0))
    display.on_end()
    lines = output.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["1/10", "4/10", "8/10", "10/10"]
    assert lines[0] == "step 1/10  loss 0.0000  lr 0.001  grad norm 1  8.19 K tokens/s  ETA 4.50 s"


def test_a_terminal_gets_a_bar_with_the_same_figures():
    output = io.StringIO()
    display = ProgressDisplay(4, Console(file=output, force_terminal=True, width=160, highlight=False))
    display.on_start(Position(4, 32))
    display.after_step(done(5, loss=0.0))
    display.on_end()
    assert "resumed after step 4 (32 samples read)" in output.getvalue()
    assert "step 5/10  loss 0.0000" in output.getvalue()


def test_every_hook_ends_even_if_one_fails():
    ended = []

    class Failing(Hook):
        def on_end(self) -> None:
            raise OSError("disk full")

    class Noting(Hook):
        def on_end(self) -> None:
            ended.append(True)

    with pytest.raises(OSError, match="disk full"):
        Hooks([Failing(), Noting()]).on_end()
    assert ended == [True]


@pytest.mark.parametrize("line", [b"garbage", b"[1]", b'{"loss": 1}', b"\x00\x00", b"\xff"])
def test_a_damaged_line_is_named(tmp_path, line):
    write_steps(tmp_path, Position(0, 0), range(1, 3))
    with open(tmp_path / "metrics.jsonl", "ab") as stream:
        stream.write(line + b"\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 5 is damaged"):
        write_steps(tmp_path, Position(2, 16), range(3, 5))
