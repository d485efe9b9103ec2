"""Plots in one style: a colour for each contender everywhere, names at the lines' ends, intervals
as bands, units on the axes. Matplotlib is imported when something is drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from math import ceil, isfinite
from pathlib import Path
from textwrap import fill
from typing import Any

from evaluation.experiments.contenders import OURS, PAPERS
from evaluation.experiments.statistics import Interval

COLOURS = {
    "round_robin": "#bdbdbd",
    "random": "#969696",
    "min_qpm": "#636363",
    "infaas": "#c7a76c",
    "llumnix": "#e08214",
    "llumnix_original": "#b35806",
    "least_outstanding": "#80cdc1",
    "least_outstanding:2": "#018571",
    "least_committed": "#5aae61",
    "least_tokens": "#b8a0d4",
    "lmetric": "#7b5aa6",
    "fan_out": "#92c5de",
    PAPERS.label: "#4393c3",
    OURS.label: "#b2182b",
}
OTHERS = ("#8c6d31", "#762a83", "#e7298a", "#666633", "#00628b", "#a6761d")
PANEL_INCHES = (4.6, 3.2)
TITLE_CHARACTERS = 42
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "astrolabe",
}


@dataclass(frozen=True, slots=True)
class Curve:
    """One contender's figure over something."""

    name: str
    x: Sequence[float]
    y: Sequence[Interval]


@dataclass(frozen=True, slots=True)
class LinePanel:
    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    log: bool = False
    limits: Sequence[float] = ()
    """Horizontal lines, such as SLOs."""


@dataclass(frozen=True, slots=True)
class BarPanel:
    title: str
    x_label: str
    names: Sequence[str]
    values: Sequence[Interval]


@dataclass(frozen=True, slots=True)
class HeatPanel:
    """`values[row][column]`; rows are y."""

    title: str
    x_label: str
    y_label: str
    x: Sequence[str]
    y: Sequence[str]
    values: Sequence[Sequence[float]]


Panel = LinePanel | BarPanel | HeatPanel


def colour_of(names: Sequence[str]) -> dict[str, str]:
    """A colour for each name, its own where it is a contender."""
    others = cycle(OTHERS)
    return {name: COLOURS.get(name) or next(others) for name in names}


def draw(panels: Sequence[Panel], path: Path, *, columns: int = 2) -> None:
    """All panels in one picture, as `path`.png and `path`.svg. Raises ValueError for no panels."""
    if not panels:
        raise ValueError("a plot of nothing")
    import matplotlib
    from matplotlib.figure import Figure

    columns = min(columns, len(panels))
    lines = ceil(len(panels) / columns)
    width, height = PANEL_INCHES
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width * columns, height * lines), layout="constrained")
        grid = list(figure.subplots(lines, columns, squeeze=False).flat)
        shared = _same_curves(panels)
        for axes, panel in zip(grid, panels, strict=False):
            axes.set_title(fill(panel.title, TITLE_CHARACTERS), loc="left", fontweight="bold")
            axes.set_xlabel(panel.x_label)
            if isinstance(panel, LinePanel):
                _lines(axes, panel)
                if not shared:
                    axes.legend()
            elif isinstance(panel, BarPanel):
                _bars(axes, panel)
            else:
                _heat(axes, panel)
        for axes in grid[len(panels) :]:
            axes.remove()
        if shared:
            figure.legend(*grid[0].get_legend_handles_labels(), loc="outside right upper")
        figure.savefig(path.with_suffix(".png"), dpi=160)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


def _lines(axes: Any, panel: LinePanel) -> None:
    colours = colour_of([curve.name for curve in panel.curves])
    for curve in panel.curves:
        colour = colours[curve.name]
        ours = curve.name == OURS.label
        mean = [interval.mean for interval in curve.y]
        low = [interval.low for interval in curve.y]
        high = [interval.high for interval in curve.y]
        axes.plot(
            curve.x,
            mean,
            marker="o",
            markersize=3,
            linewidth=2.2 if ours else 1.3,
            color=colour,
            label=curve.name,
            zorder=3 if ours else 2,
        )
        axes.fill_between(curve.x, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_ylabel(panel.y_label)
    if panel.log:
        axes.set_yscale("log")
    for limit in panel.limits:
        axes.axhline(limit, color="black", linewidth=0.8, linestyle=":")
    _look_at([interval.mean for curve in panel.curves for interval in curve.y], axes, panel.log)


def _same_curves(panels: Sequence[Panel]) -> bool:
    """Whether one legend is enough."""
    names = [
        [c.name for c in panel.curves] if isinstance(panel, LinePanel) else [] for panel in panels
    ]
    return bool(names[0]) and all(some == names[0] for some in names)


def _look_at(means: Sequence[float], axes: Any, log: bool) -> None:
    """The means fill the panel; a wide band may leave it."""
    low, high = min(means), max(means)
    if log and low > 0:
        axes.set_ylim(low / 1.3, high * 1.3)
    else:
        room = 0.08 * (high - low) or 0.05 * (abs(high) or 1.0)
        axes.set_ylim(low - room, high + room)


def _bars(axes: Any, panel: BarPanel) -> None:
    colours = colour_of(panel.names)
    places = list(range(len(panel.names)))[::-1]
    means = [value.mean for value in panel.values]
    below = [_arm(value.mean - value.low) for value in panel.values]
    above = [_arm(value.high - value.mean) for value in panel.values]
    axes.barh(
        places,
        means,
        xerr=(below, above),
        color=[colours[name] for name in panel.names],
        error_kw={"elinewidth": 1, "capsize": 2},
    )
    axes.set_yticks(places, panel.names)
    axes.grid(visible=False, axis="y")


def _arm(length: float) -> float:
    """Of an error bar; none where there is no interval."""
    return max(0.0, length) if isfinite(length) else 0.0


def _heat(axes: Any, panel: HeatPanel) -> None:
    axes.imshow(panel.values, cmap="Reds", aspect="auto")
    axes.set_xticks(range(len(panel.x)), panel.x)
    axes.set_yticks(range(len(panel.y)), panel.y)
    axes.set_ylabel(panel.y_label)
    axes.grid(visible=False)
    highest = max(max(line) for line in panel.values)
    lowest = min(min(line) for line in panel.values)
    for row, line in enumerate(panel.values):
        for column, value in enumerate(line):
            dark = value > (highest + lowest) / 2
            axes.text(
                column,
                row,
                f"{value:.2f}",
                ha="center",
                va="center",
                color="white" if dark else "black",
            )
