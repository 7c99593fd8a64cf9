"""The demo: whole works are held out, the scores are of the held-out bytes, and all of its files are there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from megalith.cli.demo import HELD_OUT, VALIDATION, make_recipe, write_texts
from megalith.config.recipe import Granularity

SMALL = ("model.num_layers=1", "model.hidden_size=32", "model.num_attention_heads=2", "model.vocab_size=300")


def lines(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_held_out_works_are_in_no_other_part(tmp_path: Path) -> None:
    write_texts(tmp_path)
    train, validation, held_out = (lines(tmp_path / f"{part}.jsonl") for part in ("train", "validation", "held_out"))
    assert (len(train), len(validation), len(held_out)) == (39, len(VALIDATION), len(HELD_OUT))
    assert [text.split("\n")[0] for text in held_out] == ["MACBETH", "TWELFTH NIGHT; OR, WHAT YOU WILL"]
    assert not {*validation, *held_out} & set(train)
    assert not any("gutenberg" in text.lower() for text in (*train, *validation, *held_out))


def test_its_recipe_splits_layers_and_sequence_and_recomputes(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, ["train_steps=70"])
    assert (recipe.layout.tensor_parallel_size, recipe.layout.sequence_parallel) == (2, True)
    assert recipe.recompute.granularity is Granularity.SELECTIVE
    assert recipe.train_steps == 70
    assert make_recipe(tmp_path, ["train_steps=70"]) == recipe
    assert (tmp_path / "recipe.yaml").is_file()


def test_the_whole_way_in_a_few_steps(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "megalith", "demo", "--output", str(tmp_path), "train_steps=4", *SMALL]
    few = ["validation.interval_steps=2", "validation.max_batches=2", "schedule.warmup_steps=1", "batch.seq_len=64"]
    ran = subprocess.run([*command, *few], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["held_out_bytes"] == 218_209
    assert 2.5 < scores["bigram_bits_per_byte"] < 3.7
    assert scores["model_bits_per_byte"] > scores["bigram_bits_per_byte"]  # four steps teach little, and it says so
    assert "warning: less than 10% below" in ran.stdout
    assert {"loss.png", "loss.csv", "metrics.jsonl", "recipe.yaml", "tokenizer.json"} <= {
        path.name for path in tmp_path.iterdir()
    }
    assert "$ megalith generate" in ran.stdout
    assert "ROMEO.\nShall I hear more, or shall I speak" in ran.stdout


@pytest.mark.slow
def test_the_real_demo_ends_ten_percent_below_the_bigram(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "megalith", "demo", "--output", str(tmp_path)]
    subprocess.run(command, check=True, timeout=1800)
    assert json.loads((tmp_path / "scores.json").read_text())["below"] >= 0.10
