"""Judging a served length model on a file of prompts, beside the baselines."""

import json
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tagger.dataset import Row
from tagger.metrics import Array, Quality, quality
from tagger.model import LengthModel

Sets = dict[str, Quality]
MAIN_SETS = ("first_turn", "all")
BUCKETS = (0, 16, 64, 256, 1 << 40)
"""Prompt tokens at which one class of prompts ends and the next begins."""
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
    """Quality on each of `sets_of`, and the speed. What a row tells of its conversation is used.

    The speed is what each prompt took of one core in milliseconds, [rows], its tokenising included.
    """
    estimates, took_ms = {}, []
    for row in track(rows, description="estimating"):
        started = time.thread_time()  # not the clock: other processes' work is not the model's
        estimates[id(row)] = model.estimate_one(row.prompt, row.conversation)
        took_ms.append((time.thread_time() - started) * 1000)
    judged = {}
    for name, part in sets_of(rows).items():
        true = np.array([row.response_tokens for row in part], dtype=np.float64)
        judged[name] = quality(true, np.array([estimates[id(row)] for row in part]))
    return judged, np.array(took_ms)


def evaluate_baselines(train: Sequence[Row], rows: Sequence[Row]) -> dict[str, Sets]:
    """The same for the three baselines, fitted on `train`."""
    from tagger.baselines import baselines  # needs scikit-learn, which judging alone does not

    return baselines(train, sets_of(rows))


def sets_of(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The parts that are judged by themselves: all rows, first turns, and prompts by their length
    where the file counts them. Empty ones are left out."""
    sets = {"all": list(rows), "first_turn": [row for row in rows if row.first_turn]}
    for low, high in pairwise(BUCKETS):
        name = f"prompt_{low}_to_{high}" if high < BUCKETS[-1] else f"prompt_from_{low}"
        sets[name] = [row for row in rows if low <= (row.prompt_tokens or -1) < high]
    return {name: part for name, part in sets.items() if part}


def as_json(
    judged: Sets, took_ms: Array, beside: dict[str, Sets], *, fp32: Sets | None = None
) -> dict[str, object]:
    """{"first_turn": {…}, "all": {…}, "prompt_…": {…}, "cpu_ms": {…}, "baselines": {name: {…}}},
    and "fp32" with the figures of the same model before it was quantised."""
    full = {} if fp32 is None else {"fp32": {name: one.as_dict() for name, one in fp32.items()}}
    return {
        **{name: one.as_dict() for name, one in judged.items()},
        **full,
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
        if title in MAIN_SETS:
            console.print(_table(title, {"model": judged, **beside}))
    console.print(_by_prompt(judged))
    console.print(
        f"one core, ms per prompt: mean {took_ms.mean():.1f}, median {np.median(took_ms):.1f}, "
        f"p90 {np.quantile(took_ms, 0.9):.1f}"
    )


def _by_prompt(judged: Sets) -> Table:
    table = Table(title="by the prompt's tokens")
    for column in ("prompt", "n", "MAE", "Spearman", "pairs 2x apart", "p10 to p90 holds"):
        table.add_column(column, justify="right")
    for name, one in judged.items():
        if name in MAIN_SETS:
            continue
        table.add_row(
            name.removeprefix("prompt_").replace("_", " "),
            f"{one.n:,}",
            f"{one.mae:.1f}",
            f"{one.spearman:.3f}",
            f"{one.pair_order_2x:.3f}",
            "-" if one.coverage is None else f"{one.coverage:.2f}",
        )
    return table


def _table(title: str, estimators: dict[str, Sets]) -> Table:
    n = estimators["model"][title].n
    table = Table("tokens", title=f"answer length, {title.replace('_', ' ')} (n = {n})")
    for name in estimators:
        table.add_column(name, justify="right")
    for figure, (field, form) in FIGURES.items():
        values = [getattr(sets[title], field) for sets in estimators.values()]
        table.add_row(figure, *("-" if value is None else f"{value:{form}}" for value in values))
    return table
