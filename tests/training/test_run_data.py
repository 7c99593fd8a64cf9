"""What a run does with its data: blends that change, several validation sets, orders built ahead, steps added later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from megalith.checkpoint import folder
from megalith.config.reader import read_recipe
from megalith.data.sources import prepare
from megalith.errors import UserError
from megalith.tokens.indexed import IndexedTokens
from megalith.tokens.tokenizer import Tokenizer
from megalith.tokens.writer import IndexedWriter
from megalith.training.build import build_run, train_recipe
from megalith.training.metrics import read_metrics
from megalith.training.world import World

CONSTANT = {"name": "constant"}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Folder with token files a, b and v of one document each."""
    for name, length in (("a", 700), ("b", 180), ("v", 90)):
        with IndexedWriter(tmp_path / name, np.uint16) as writer:
            writer.append(np.arange(length) % 290)
    return tmp_path


def blend(files: Path, a: float, b: float) -> dict:
    parts = [{"prefix": str(files / name), "weight": weight} for name, weight in (("a", a), ("b", b))]
    return {"blend": parts, "split": "100,0,0"}


def drawn(output: Path, step: int, files: Path) -> list[int]:
    """Samples of a and b up to `step`, as the checkpoint says."""
    counts = folder.read_manifest(folder.step_folder(output, step)).sources["drawn"]
    return [counts[IndexedTokens(files / name).digest] for name in "ab"]


def test_a_blend_changes_its_weights_on_resume_and_loses_nothing(write_recipe, tmp_path, files, capsys):
    output, none = tmp_path / "run", {"interval_steps": 0}
    train_recipe(read_recipe(write_recipe(output, data=blend(files, 1, 1), validation=none), []))
    shown = capsys.readouterr().out
    assert f"{files}/a: 50.0% of the samples, 12 of 43 in one epoch: 0.28 epochs" in shown
    assert f"{files}/b: 50.0% of the samples, 12 of 11 in one epoch: 1.09 epochs" in shown
    assert drawn(output, 6, files) == [12, 12]
    changed = write_recipe(output, data=blend(files, 2, 1), validation=none, train_steps=12)
    train_recipe(read_recipe(changed, []))
    captured = capsys.readouterr()
    assert "28 of 43" in captured.out and "20 of 11" in captured.out
    assert "another order" not in captured.err
    assert drawn(output, 12, files) == [28, 20]


@pytest.mark.parametrize("change", ["data.split=90,10,0", "batch.seq_len=8", "seed=7", "data.order=megatron"])
def test_what_numbers_samples_otherwise_is_said_aloud(write_recipe, tmp_path, capsys, change):
    path = write_recipe(tmp_path / "run", train_steps=1, schedule=CONSTANT)
    train_recipe(read_recipe(path, []), display=False)
    train_recipe(read_recipe(path, [change, "train_steps=2"]), display=False)
    assert f"{change.partition('=')[0]}: " in (error := capsys.readouterr().err) and "another order" in error


def test_more_steps_and_other_batches_go_on_with_the_same_samples(write_recipe, tmp_path):
    """Three steps and then three more, by other micro-batches: the figures of six at once."""
    whole, grown = tmp_path / "whole", tmp_path / "grown"
    model = {"num_layers": 1, "hidden_size": 32, "num_attention_heads": 4, "vocab_size": 300, "max_seq_len": 16}
    choices = {"schedule": CONSTANT, "model": model}
    train_recipe(read_recipe(write_recipe(whole, **choices), []), display=False)
    path = write_recipe(grown, **choices)
    train_recipe(read_recipe(path, ["train_steps=3"]), display=False)
    train_recipe(read_recipe(path, ["batch.micro_batch_size=4", "data.num_workers=3"]), display=False)
    losses = [
        [line["loss"] for line in read_metrics(run / "metrics.jsonl") if "loss" in line] for run in (whole, grown)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and len(losses[0]) == 6


def test_each_validation_set_is_measured_by_name(write_recipe, tmp_path, files):
    sets = [{"name": name, "prefix": str(files / prefix)} for name, prefix in (("news", "v"), ("books", "b"))]
    output = tmp_path / "run"
    train_recipe(read_recipe(write_recipe(output, data=blend(files, 1, 1) | {"validation": sets}), []), display=False)
    lines = [line for line in read_metrics(output / "metrics.jsonl") if "validation_loss" in line]
    assert [(line["step"], line["validation_set"]) for line in lines] == [
        (3, "news"), (3, "books"), (6, "news"), (6, "books"),
    ]  # fmt: skip
    assert [line["validation_tokens"] for line in lines] == [5 * 16, 8 * 16] * 2  # 8: of max_batches, where it has 11
    assert lines[2]["validation_loss"] != lines[3]["validation_loss"]


@pytest.mark.parametrize("order", ["epochs", "megatron"])
def test_after_preparing_training_builds_nothing(write_recipe, tmp_path, order):
    recipe = read_recipe(write_recipe(tmp_path / "run"), [f"data.index_cache={tmp_path}/cache", f"data.order={order}"])
    assert sum(cache.builds for cache in prepare(recipe).caches) == 2  # training and validation
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.npy")}
    train_recipe(recipe, display=False)
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.npy")}
    assert len(before) == 6 and after == before


def test_a_validation_file_of_another_tokenizer_is_refused(write_recipe, tmp_path, files, corpus):
    (files / "v.json").write_text("{}")
    data = {"prefix": str(files / "a"), "tokenizer": str(corpus / "tokenizer.json")}
    sets = [{"name": "news", "prefix": str(files / "v")}]
    with pytest.raises(UserError, match=r"v\.json: not a manifest"):
        train_recipe(read_recipe(write_recipe(tmp_path / "run", data=data | {"validation": sets}), []), display=False)


def test_the_end_of_documents_is_unscored_where_it_is_known(write_recipe, tmp_path, files, corpus):
    path, tokenizer = write_recipe(tmp_path / "run"), Tokenizer.open(corpus)
    scored = []
    for choice in ("false", "true"):
        run = build_run(
            read_recipe(path, [f"data.eod_mask_loss={choice}"]), World(), torch.device("cpu"), display=False
        )
        steps = [run.loader.next_step() for _ in range(4)]
        scored.append(sum(int(m.loss_mask_BS.sum()) for step in steps for m in step))
        ends = sum(int((m.tokens_BS == tokenizer.end_of_document).sum()) for step in steps for m in step)
    assert scored == [256, 256 - ends] and ends > 5
    changes = {"data": {"prefix": str(files / "a"), "eod_mask_loss": True}, "validation": {"interval_steps": 0}}
    path = write_recipe(tmp_path / "unknown", **changes)
    with pytest.raises(
        UserError, match=r"eod_mask_loss=true needs .* choose data\.tokenizer=.* or data\.eod_mask_loss"
    ):
        build_run(read_recipe(path, []), World(), torch.device("cpu"), display=False)
