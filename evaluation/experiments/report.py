"""What an experiment leaves in its folder: rows, means, tables, plots and a short text."""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from evaluation.experiments.base import Experiment, Findings
from evaluation.experiments.cells import Label, Row
from evaluation.experiments.code_version import code_version
from evaluation.experiments.machine import machine
from evaluation.experiments.plots import draw
from evaluation.experiments.rows import Rows
from evaluation.experiments.scale import Scale
from evaluation.experiments.statistics import CONFIDENCE, mean_interval

PLOT = "plot"


@dataclass(frozen=True, slots=True)
class Made:
    """How it was made."""

    command: str
    scale: Scale

    def lines(self) -> list[str]:
        return [
            f"* command: `{self.command}`",
            f"* {_seeds_text(self.scale.seeds)}, paired; {self.scale.requests:,} requests a run; "
            f"lengths: {self.scale.workload}",
            f"* intervals: {CONFIDENCE:.0%}, Student's t over seeds",
            f"* machine: {machine()}; code {code_version()}",
        ]


def write_report(
    folder: Path, experiment: Experiment, rows: list[Row], findings: Findings, made: Made
) -> None:
    """Into `folder`, which is made: rows.csv, summary.json, table.md, plot.png, plot.svg and
    report.md."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_csv(folder / "rows.csv", rows)
    tables = "\n\n".join(table.markdown() for table in findings.tables)
    (folder / "table.md").write_text(tables + "\n")
    draw(findings.panels, folder / PLOT)
    parts = [
        f"# {experiment.name}: {experiment.line}",
        "\n".join(made.lines()),
        *findings.paragraphs,
        tables,
        f"![{experiment.name}]({PLOT}.svg)",
    ]
    (folder / "report.md").write_text("\n\n".join(parts) + "\n")
    summary = {
        "experiment": experiment.name,
        "command": made.command,
        "machine": machine(),
        "code_version": code_version(),
        "seeds": list(made.scale.seeds),
        "requests": made.scale.requests,
        "workload": made.scale.workload,
        **findings.figures,
        "means": means(rows),
    }
    (folder / "summary.json").write_text(json.dumps(_without_nan(summary), indent=2) + "\n")


def means(rows: list[Row]) -> list[dict[str, object]]:
    """Every figure's mean and interval in every setting. What stands before `seed` in a row are
    its labels, what stands behind it are figures."""
    settings: dict[tuple[Label, ...], list[Row]] = {}
    for row in rows:
        settings.setdefault(tuple(_labels(row).values()), []).append(row)
    found: list[dict[str, object]] = []
    for some in settings.values():
        labels = _labels(some[0])
        entry: dict[str, object] = dict(labels)
        for figure in list(some[0])[len(labels) + 1 :]:
            interval = mean_interval(list(Rows(some).by_seed(figure).values()))
            entry[figure] = {"mean": interval.mean, "low": interval.low, "high": interval.high}
        found.append(entry)
    return found


def _seeds_text(seeds: tuple[int, ...]) -> str:
    return f"{len(seeds)} seeds ({', '.join(map(str, seeds))})"


def _labels(row: Row) -> dict[str, Label]:
    titles = list(row)
    return {title: row[title] for title in titles[: titles.index("seed")]}


def _write_csv(path: Path, rows: list[Row]) -> None:
    columns = list(dict.fromkeys(title for row in rows for title in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def _without_nan(value: object) -> object:
    """JSON has no NaN."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_nan(inner) for inner in value]
    return value
