"""Judging a served length model on a file of prompts, beside the baselines."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tagger.dataset import Row, read_rows
from tagger.metrics import Array, Quality, quality
from tagger.model import LengthModel

Sets = dict[str, Quality]
FIGURES = {
    "MAE": ("mae", ".1f"),
    "median AE": ("median_ae", ".0f"),
    "RMSE": ("rmse", ".0f"),
    "within 25 tokens": ("within_25", ".2f"),
    "within 50 tokens": ("within_50", ".2f"),
    "within 100 tokens": ("within_100", ".2f"),
    "Spearman": ("spearman", ".3f"),
    "Kendall": ("kendall", ".3f"),
    "pairs in order": ("pair_order", ".3f"),
    "pairs 2x apart": ("pair_order_2x", ".3f"),
    "pinball": ("pinball", ".4f"),
    "p10 to p90 holds": ("coverage", ".2f"),
}


def evaluate(model: LengthModel, rows: Sequence[Row]) -> tuple[Sets, Array]:
    """Quality on all rows, and on first turns where the file tells them apart; and the speed.

    The speed is what each prompt took of one core in milliseconds, [rows], its tokenising included.
    """
    estimates, took_ms = [], []
    for row in track(rows, description="estimating"):
        started = time.thread_time()  # not the clock: other processes' work is not the model's
        estimates.append(model.estimate_one(row.prompt)[1])
        took_ms.append((time.thread_time() - started) * 1000)
    quantiles = np.array(estimates)
    true = np.array([row.response_tokens for row in rows], dtype=np.float64)
    first = np.array([row.first_turn for row in rows])
    judged = {"all": quality(true, quantiles)}
    if first.any():
        judged["first_turn"] = quality(true[first], quantiles[first])
    return judged, np.array(took_ms)


def evaluate_baselines(train_file: Path, rows: Sequence[Row]) -> dict[str, Sets]:
    """The same for the three baselines, fitted on `train_file`."""
    from tagger.baselines import baselines  # needs scikit-learn, which judging alone does not

    sets: dict[str, Sequence[Row]] = {"all": rows}
    if first := [row for row in rows if row.first_turn]:
        sets["first_turn"] = first
    return baselines(read_rows(train_file), sets)


def as_json(judged: Sets, took_ms: Array, beside: dict[str, Sets]) -> dict[str, object]:
    """{"first_turn": {…}, "all": {…}, "cpu_ms": {…}, "baselines": {name: {…}}}."""
    return {
        **{name: one.as_dict() for name, one in judged.items()},
        "cpu_ms": {
            "mean": round(float(took_ms.mean()), 2),
            "median": round(float(np.median(took_ms)), 2),
            "p90": round(float(np.quantile(took_ms, 0.9)), 2),
        },
        "baselines": {
            name: {title: one.as_dict() for title, one in sets.items()}
            for name, sets in beside.items()
        },
    }


def write_json(path: Path, report: dict[str, object]) -> None:
    """Write the report, its folder too where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")


def print_table(judged: Sets, took_ms: Array, beside: dict[str, Sets], console: Console) -> None:
    """One table a set, the model first; tokens where nothing else is said."""
    for title in judged:
        console.print(_table(title, {"model": judged, **beside}))
    console.print(
        f"one core, ms per prompt: mean {took_ms.mean():.1f}, median {np.median(took_ms):.1f}, "
        f"p90 {np.quantile(took_ms, 0.9):.1f}"
    )


def _table(title: str, estimators: dict[str, Sets]) -> Table:
    n = estimators["model"][title].n
    table = Table("tokens", title=f"answer length, {title.replace('_', ' ')} (n = {n})")
    for name in estimators:
        table.add_column(name, justify="right")
    for figure, (field, form) in FIGURES.items():
        values = [getattr(sets[title], field) for sets in estimators.values()]
        table.add_row(figure, *("-" if value is None else f"{value:{form}}" for value in values))
    return table
