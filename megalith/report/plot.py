"""Show how a run went: its loss curve as a picture, and the very points of the picture as CSV.

Reads `metrics.jsonl` of a run's folder. matplotlib (the extra `plot`) is imported when a picture is drawn.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from math import isfinite
from operator import mul
from pathlib import Path
from typing import Any

from megalith.errors import UserError
from megalith.files import atomic_writer
from megalith.units import format_count

METRICS = "metrics.jsonl"
TRAIN_COLOUR, VALIDATION_COLOUR, REFERENCE_COLOUR, INK = "#2a6f97", "#d1495b", "#7a7a7a", "#333333"


@dataclass(frozen=True)
class Curve:
    """Points of one loss over training: optimizer steps, tokens trained on up to there, mean loss in nats per token."""

    steps: tuple[int, ...]
    tokens: tuple[int, ...]
    losses: tuple[float, ...]


@dataclass(frozen=True)
class LossCurves:
    train: Curve
    validation: Curve


def read_curves(run_folder: Path) -> LossCurves:
    """The curves in `run_folder`/metrics.jsonl. Raises UserError where it is missing, damaged or has no step in it."""
    path = run_folder / METRICS
    if not path.is_file():
        raise UserError(f"{path} does not exist; name the output folder of a run that has made at least one step")
    lines = list(_lines(path))
    train = [line for line in lines if "loss" in line]
    if not train:
        raise UserError(f"{path} holds no training step; let the run make at least one")
    trained = list(accumulate(int(line["tokens"]) for line in train))
    tokens_at = dict(zip((line["step"] for line in train), trained, strict=True))
    validation = over_sets([line for line in lines if "validation_loss" in line])
    return LossCurves(
        train=_curve([line["step"] for line in train], trained, [line["loss"] for line in train]),
        validation=_curve(
            [line["step"] for line in validation],
            [tokens_at.get(line["step"], 0) for line in validation],
            [line["validation_loss"] for line in validation],
        ),
    )


def plot_loss(run_folder: Path, title: str, references: Sequence[tuple[str, float]] = ()) -> Path:
    """Write loss.png and loss.csv into `run_folder`; returns the picture's path.

    references: losses in nats per token to compare with, each drawn as a level line under its name.
    Raises UserError where there are no metrics or matplotlib is not installed.
    """
    curves = read_curves(run_folder)
    _write_csv(curves, run_folder / "loss.csv")
    with atomic_writer(run_folder / "loss.png") as file:
        file.write(_draw(curves, title, references))
    return run_folder / "loss.png"


def over_sets(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a step out of one for each validation set: the mean over the tokens of all sets."""
    merged = []
    for step, group in groupby(lines, key=lambda line: line["step"]):
        sets = list(group)
        tokens = [one.get("validation_tokens", 1) for one in sets]
        losses = [float(one["validation_loss"]) for one in sets]
        mean = sum(map(mul, losses, tokens)) / max(1, sum(tokens)) if len(sets) > 1 else losses[0]
        merged.append({"step": step, "validation_loss": mean})
    return merged


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Mean of each value with up to `window // 2` neighbours on either side."""
    half = window // 2
    spans = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return [sum(span) / len(span) for span in spans]


def _lines(path: Path) -> list[dict[str, Any]]:
    """Whole lines of the file; a last one that a killed process left unfinished is not one."""
    texts = path.read_text(encoding="utf-8").split("\n")[:-1]
    try:
        return [json.loads(text) for text in texts if text.strip()]
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}; remove the broken line") from error


def _curve(steps: list[int], tokens: list[int], losses: list[Any]) -> Curve:
    """A curve of the points whose loss is finite; others are written as text ("nan", "inf")."""
    points = [point for point in zip(steps, tokens, map(float, losses), strict=True) if isfinite(point[2])]
    return Curve(*(tuple(column) for column in zip(*points, strict=True))) if points else Curve((), (), ())


def _write_csv(curves: LossCurves, path: Path) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("split", "step", "tokens", "loss_nats_per_token"))
    for split, curve in (("train", curves.train), ("validation", curves.validation)):
        writer.writerows((split, *point) for point in zip(curve.steps, curve.tokens, curve.losses, strict=True))
    with atomic_writer(path) as file:
        file.write(text.getvalue().encode())


def _draw(curves: LossCurves, title: str, references: Sequence[tuple[str, float]]) -> bytes:
    """The picture as PNG bytes, drawn without a display."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("a picture needs matplotlib; install it with: pip install 'megalith[plot]'") from error
    figure = Figure(figsize=(9, 5.2), dpi=140, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    train, validation = curves.train, curves.validation
    if train.steps:
        axes.plot(train.steps, train.losses, color=TRAIN_COLOUR, alpha=0.25, linewidth=0.8)
        window = max(1, len(train.losses) // 50)
        mean = f"training, mean of {window} steps" if window > 1 else "training"
        axes.plot(train.steps, smooth(train.losses, window), color=TRAIN_COLOUR, linewidth=1.8, label=mean)
    if validation.steps:
        axes.plot(validation.steps, validation.losses, "o-", color=VALIDATION_COLOUR, markersize=4, label="validation")
        last = (validation.steps[-1], validation.losses[-1])
        axes.annotate(
            f"{last[1]:.2f}", last, xytext=(6, 0), textcoords="offset points", color=VALIDATION_COLOUR, va="center"
        )
    for (name, level), style in zip(references, ("--", ":", "-.") * len(references), strict=False):
        axes.axhline(level, color=REFERENCE_COLOUR, linewidth=1.2, linestyle=style, label=f"{name}: {level:.2f}")
    _dress(axes, curves, title)
    target = io.BytesIO()
    figure.savefig(target, format="png")
    return target.getvalue()


def _dress(axes: Any, curves: LossCurves, title: str) -> None:
    """Axes with units: steps below, tokens above, nats per token at the left; cut off above the first steps' losses."""
    steps, tokens = curves.train.steps, curves.train.tokens
    axes.set_title(title, loc="left", fontsize=13, color=INK, pad=12)
    axes.set_xlabel("optimizer step", color=INK)
    axes.set_ylabel("loss (nats per token)", color=INK)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if steps:
        axes.set_xlim(0, steps[-1] * 1.04)
        axes.legend(frameon=False, loc="upper right")
        per_step = tokens[-1] / len(tokens)
        above = axes.secondary_xaxis("top", functions=(lambda x: x * per_step, lambda x: x / per_step))
        above.xaxis.set_major_formatter(lambda value, _: format_count(value))
        above.set_xlabel("tokens trained on", color=INK)
        above.spines["top"].set_visible(False)
