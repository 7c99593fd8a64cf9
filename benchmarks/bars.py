"""Groups of bars: one panel a figure, one group a (precision, attention), one bar a contestant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


def draw_bars(
    path: Path, rows: Sequence[Row], panels: Mapping[str, str], colours: Mapping[str, str], title: str
) -> None:
    """Write a PNG. rows: `who`, `precision`, `attention` and the figures; panels: figure -> its title.

    A figure with `_min` and `_max` beside it gets a line between them; rows without the figure get no bar.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    picture = Figure(figsize=(14, 3.9 * -(-len(panels) // 2)), dpi=110, layout="constrained")
    FigureCanvasAgg(picture)
    names = [name for name in colours if any(row["who"] == name for row in rows)]
    for axes, (figure, label) in zip(picture.subplots(-(-len(panels) // 2), 2).flat, panels.items(), strict=False):
        _panel(axes, [row for row in rows if figure in row], figure, colours, names)
        axes.set_title(label, loc="left", fontsize=11)
    picture.suptitle(title, x=0.01, ha="left", fontsize=14)
    patches = [Patch(color=colours[name]) for name in names]
    picture.legend(patches, names, loc="outside lower left", ncols=len(names), frameon=False)
    picture.savefig(path)


def _panel(axes: Any, rows: Sequence[Row], figure: str, colours: Mapping[str, str], all_names: Sequence[str]) -> None:
    groups = list(dict.fromkeys((row["precision"], row["attention"]) for row in rows))
    names = [name for name in all_names if any(row["who"] == name for row in rows)]
    width = 0.8 / len(names)
    for row in rows:
        place = names.index(row["who"]) - (len(names) - 1) / 2
        x = groups.index((row["precision"], row["attention"])) + place * width
        least, most = row.get(f"{figure}_min", row[figure]), row.get(f"{figure}_max", row[figure])
        axes.bar(x, row[figure], width * 0.94, color=colours[row["who"]])
        if most > least:
            axes.vlines(x, least, most, color="#333333", linewidth=1)
        text = f"{row[figure]:.2f}" if most < 20 else f"{row[figure]:.0f}"
        axes.annotate(text, (x, most), (0, 2), textcoords="offset points", ha="center", fontsize=9)
    if figure.endswith("ratio"):
        axes.axhline(1, color="#7a7a7a", linewidth=1, linestyle="--")
    axes.set_xticks(range(len(groups)), [f"{precision}, {attention}" for precision, attention in groups])
    axes.grid(axis="y", color="#e6e6e6")
    axes.set_axisbelow(True)
    axes.margins(y=0.15)
    axes.spines[["top", "right"]].set_visible(False)
