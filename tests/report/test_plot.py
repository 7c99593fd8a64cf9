"""The loss curve: the points of metrics.jsonl as CSV, a PNG that shows them, faults that say what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from megalith.errors import UserError
from megalith.report.plot import over_sets, plot_loss, read_curves, smooth


def write_metrics(folder: Path, end: str = "\n") -> None:
    lines = [
        {"step": 1, "loss": 8.0, "tokens": 100},
        {"step": 2, "loss": "nan", "tokens": 100},
        {"step": 2, "validation_loss": 7.0, "validation_tokens": 50},
        {"step": 3, "loss": 6.0, "tokens": 100},
    ]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + end)


def test_points_are_those_of_the_metrics(tmp_path: Path) -> None:
    write_metrics(tmp_path)
    curves = read_curves(tmp_path)
    assert (curves.train.steps, curves.train.tokens, curves.train.losses) == ((1, 3), (100, 300), (8.0, 6.0))
    assert (curves.validation.steps, curves.validation.tokens, curves.validation.losses) == ((2,), (200,), (7.0,))


def test_a_last_line_that_a_killed_run_left_unfinished_is_passed_over(tmp_path: Path) -> None:
    write_metrics(tmp_path, end='\n{"step": 4, "lo')
    assert read_curves(tmp_path).train.steps == (1, 3)


def test_csv_and_png_are_written(tmp_path: Path) -> None:
    write_metrics(tmp_path)
    picture = plot_loss(tmp_path, "a run", [("reference", 7.5)])
    assert picture == tmp_path / "loss.png"
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (tmp_path / "loss.csv").read_text().splitlines() == [
        "split,step,tokens,loss_nats_per_token",
        "train,1,100,8.0",
        "train,3,300,6.0",
        "validation,2,200,7.0",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loss.csv", "loss.png", "metrics.jsonl"]


def test_what_is_drawn_is_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the lines back from the figure itself."""
    from matplotlib.figure import Figure

    figures = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k))[1])
    write_metrics(tmp_path)
    plot_loss(tmp_path, "a run", [("bigram", 7.5)])
    (axes,) = figures[0].axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert drawn["training"] == [8.0, 6.0]
    assert drawn["validation"] == [7.0]
    assert drawn["bigram: 7.50"] == [7.5, 7.5]
    assert axes.get_ylabel() == "loss (nats per token)"


def test_smooth_is_a_centred_mean() -> None:
    assert smooth([1.0, 2.0, 6.0, 7.0], window=3) == [1.5, 3.0, 5.0, 6.5]
    assert smooth([1.0, 2.0], window=1) == [1.0, 2.0]


def test_faults_name_the_file_and_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"metrics.jsonl does not exist; name the output folder of a run"):
        plot_loss(tmp_path, "a run")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "validation_loss": 3.0}\n')
    with pytest.raises(UserError, match="holds no training step"):
        plot_loss(tmp_path, "a run")
    (tmp_path / "metrics.jsonl").write_text("{broken\n")
    with pytest.raises(UserError, match="is damaged"):
        plot_loss(tmp_path, "a run")


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path) -> None:
    write_metrics(tmp_path)
    program = (
        "import sys; sys.modules['matplotlib.backends.backend_agg'] = None\n"
        "from pathlib import Path; from megalith.errors import UserError; from megalith.report.plot import plot_loss\n"
        f"try: plot_loss(Path({str(tmp_path)!r}), 'a run')\n"
        "except UserError as error: print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "a picture needs matplotlib; install it with: pip install 'megalith[plot]'\n"


def test_several_validation_sets_are_one_point_a_step_weighted_by_tokens() -> None:
    lines = [
        {"step": 2, "validation_set": "a", "validation_loss": 4.0, "validation_tokens": 30},
        {"step": 2, "validation_set": "b", "validation_loss": 8.0, "validation_tokens": 10},
        {"step": 4, "validation_set": "a", "validation_loss": "nan", "validation_tokens": 30},
    ]
    merged = over_sets(lines)
    assert merged[0] == {"step": 2, "validation_loss": 5.0}
    assert merged[1]["step"] == 4 and merged[1]["validation_loss"] != merged[1]["validation_loss"]
