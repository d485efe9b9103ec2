"""Judging a served length model on a file of prompts, beside the baselines."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tagger.baselines import baselines
from tagger.dataset import Row, read_rows
from tagger.metrics import Quality, quality
from tagger.model import LengthModel

Sets = dict[str, Quality]


def evaluate(model: LengthModel, rows: Sequence[Row]) -> Sets:
    """Quality on all rows, and on first turns where the file tells them apart."""
    estimates = np.concatenate(
        [model.estimate([row.prompt]) for row in track(rows, description="estimating")]
    )
    true = np.array([row.response_tokens for row in rows], dtype=np.float64)
    first = np.array([row.first_turn for row in rows])
    judged = {"all": quality(true, estimates)}
    if first.any():
        judged["first_turn"] = quality(true[first], estimates[first])
    return judged


def evaluate_baselines(train_file: Path, rows: Sequence[Row]) -> dict[str, Sets]:
    """The same for the three baselines, fitted on `train_file`."""
    sets: dict[str, Sequence[Row]] = {"all": rows}
    if first := [row for row in rows if row.first_turn]:
        sets["first_turn"] = first
    return baselines(read_rows(train_file), sets)


def as_json(judged: Sets, beside: dict[str, Sets]) -> dict[str, object]:
    """{"first_turn": {…}, "all": {…}, "baselines": {name: {…}}}."""
    return {
        **{name: one.as_dict() for name, one in judged.items()},
        "baselines": {
            name: {title: one.as_dict() for title, one in sets.items()}
            for name, sets in beside.items()
        },
    }


def write_json(path: Path, report: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")


def print_table(judged: Sets, beside: dict[str, Sets], console: Console) -> None:
    """One table a set, the model first."""
    for title in judged:
        console.print(_table(title, {"model": judged, **beside}))


def _table(title: str, estimators: dict[str, Sets]) -> Table:
    table = Table(title=f"answer length, {title.replace('_', ' ')}")
    for heading in ("estimator", "MAE", "median AE", "within 100", "Spearman", "Kendall"):
        table.add_column(heading, justify="left" if heading == "estimator" else "right")
    table.add_column("pairs", justify="right")
    table.add_column("pairs 2x", justify="right")
    table.add_column("p10 to p90", justify="right")
    for name, sets in estimators.items():
        one = sets[title]
        coverage = "-" if one.coverage is None else f"{one.coverage:.2f}"
        table.add_row(
            name,
            f"{one.mae:.1f}",
            f"{one.median_ae:.0f}",
            f"{one.within_100:.2f}",
            f"{one.spearman:.3f}",
            f"{one.kendall:.3f}",
            f"{one.pair_order:.3f}",
            f"{one.pair_order_2x:.3f}",
            coverage,
        )
    return table
