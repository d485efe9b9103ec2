"""The comparison as tables: for people, as Markdown, as CSV, as JSON."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from rich.table import Table

from evaluation.rivals.cases import Row

COLUMNS: Mapping[str, tuple[Callable[[Row], float], str]] = {
    "added ms": (lambda row: row.added_ms, ".1f"),
    "TTFT p50 ms": (lambda row: row.measured.ttft_p50, ".0f"),
    "TTFT p99 ms": (lambda row: row.measured.ttft_p99, ",.0f"),
    "E2E mean s": (lambda row: row.measured.e2e_mean / 1000, ".2f"),
    "E2E p99 s": (lambda row: row.measured.e2e_p99 / 1000, ".1f"),
    "slowdown mean": (lambda row: row.measured.slowdown_mean, ".2f"),
    "slowdown p99": (lambda row: row.measured.slowdown_p99, ".1f"),
    "failed": (lambda row: float(sum(row.measured.failed.values())), ".0f"),
    "CPU ms": (lambda row: row.measured.dispatch_cpu_ms, ".1f"),
    "own %": (lambda row: row.measured.own_share * 100, ".0f"),
    "idle %": (lambda row: row.measured.idle_share * 100, ".0f"),
}
"""Title, what stands in it, how it is written."""
SHARES = "shares %"


def grid(rows: Sequence[Row], case: str) -> tuple[list[str], list[list[str]]]:
    """Headings and lines of one case; several seeds become a range."""
    labels = list(dict.fromkeys(row.contender.label for row in rows if row.case == case))
    lines = []
    for label in labels:
        same = [row for row in rows if row.case == case and row.contender.label == label]
        cells = [_range([value(row) for row in same], form) for value, form in COLUMNS.values()]
        lines.append([label, *cells, _shares(same[-1])])
    return ["", *COLUMNS, SHARES], lines


def rich_table(rows: Sequence[Row], case: str) -> Table:
    """For a terminal."""
    headings, lines = grid(rows, case)
    table = Table(title=f"Case: {case}", title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    for line in lines:
        table.add_row(*line)
    return table


def markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table for a page; the first column to the left."""
    rows = [headings, ["---", *["---:"] * (len(headings) - 1)], *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def as_csv(rows: Sequence[Row]) -> str:
    """One line a run, every figure unrounded."""
    flat = [_flat(row) for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def as_json(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Every run with all its figures; what is not a number is null."""
    return [
        {
            "case": row.case,
            "seed": row.seed,
            "target": row.contender.name,
            "policy": row.contender.policy,
            "added_ms": _number(row.added_ms),
            "floor": _numbers(asdict(row.floor)),
            **_numbers(asdict(row.measured)),
        }
        for row in rows
    ]


def _flat(row: Row) -> dict[str, object]:
    measured = asdict(row.measured)
    return {
        "case": row.case,
        "seed": row.seed,
        "target": row.contender.name,
        "policy": row.contender.policy,
        "added_ms": row.added_ms,
        **{f"idle_{name}": value for name, value in measured.pop("idle").items()},
        "failed": sum(measured.pop("failed").values()),
        "shares": _shares(row),
        **{name: value for name, value in measured.items() if name != "shares"},
    }


def _shares(row: Row) -> str:
    return " ".join(f"{share * 100:.0f}" for share in row.measured.shares.values())


def _range(values: Sequence[float], form: str) -> str:
    """The value, or the least and the greatest where they are written differently."""
    least, most = format(min(values), form), format(max(values), form)
    return least if least == most else f"{least}–{most}"  # noqa: RUF001  a range has a dash


def _numbers(tree: Mapping[str, object]) -> dict[str, object]:
    return {
        name: _numbers(value)
        if isinstance(value, dict)
        else _number(value)
        if isinstance(value, float)
        else value
        for name, value in tree.items()
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)
