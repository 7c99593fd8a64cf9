"""The verb `train` up to the moment at which torch would be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from megalith.cli.main import main

RECIPE = {
    "model": {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "vocab_size": 300, "max_seq_len": 16},
    "data": {"prefix": "tokens"},
    "batch": {"seq_len": 16, "micro_batch_size": 2, "global_batch_size": 4},
    "train_steps": 6,
    "output": "run",
}
ALONE = [name for name in os.environ if name.startswith(("SLURM", "RANK", "WORLD_SIZE"))]


@pytest.fixture
def recipe(tmp_path, monkeypatch) -> str:
    for name in ALONE:
        monkeypatch.delenv(name)
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    return str(path)


def test_print_gives_a_recipe_that_reads_as_the_same(recipe, tmp_path, capsys):
    assert main(["train", recipe, "optimizer.lr=1e-4", "--print"]) == 0
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed)["optimizer"]["lr"] == 1e-4
    again = tmp_path / "again.yaml"
    again.write_text(printed)
    assert main(["train", str(again), "--print", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == yaml.safe_load(printed)


def test_processes_that_do_not_fit_the_recipe_are_refused(recipe, capsys):
    assert main(["train", recipe, "layout.tensor_parallel_size=2", "--nproc", "3"]) == 2
    assert "tensor_parallel_size=2" in capsys.readouterr().err
    assert main(["train", recipe, "--nproc", "0"]) == 2
    assert "--nproc 0" in capsys.readouterr().err


def test_nproc_that_contradicts_the_launcher_is_refused(recipe, monkeypatch, capsys):
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    assert main(["train", recipe, "--nproc", "2", "--print"]) == 2
    assert "started 4 processes" in capsys.readouterr().err


def test_notes_are_shown(recipe, capsys, monkeypatch):
    monkeypatch.setattr("megalith.cli.train.train", lambda recipe: 0)
    assert main(["train", recipe, "recompute=selective", "attention=sdpa"]) == 0
    assert "note: " in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["batch.seq_len=17"], ["optimiser.lr=1"], ["--nproc", "3"]])
def test_a_bad_recipe_is_refused_before_torch(recipe, arguments):
    code = (
        "import sys\nfrom megalith.cli.main import main\ncode = main(sys.argv[1:])\n"
        "sys.exit(99 if 'torch' in sys.modules else code)"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code, "train", recipe, *arguments], env=env, timeout=30)
    assert done.returncode == 2


def test_importing_the_package_needs_no_torch():
    code = (
        "import sys, megalith; assert 'torch' not in sys.modules; assert {'train', 'open_model'} <= set(dir(megalith))"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", code], env=env, timeout=30).returncode == 0
