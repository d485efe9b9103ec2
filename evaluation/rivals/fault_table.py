"""The fault cases as a table: one line a case, one column a target."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from rich.table import Table

from evaluation.rivals.faults import FREED_WITHIN_S, FaultReport, InFlight
from evaluation.rivals.seen import Seen


def _freed(took_s: float | None) -> str:
    if took_s is None:
        return f"works on for more than {FREED_WITHIN_S:g} s"
    return "no such thing" if math.isnan(took_s) else f"stops after {took_s * 1000:.0f} ms"


def _in_flight(what: InFlight) -> str:
    parts = [f"{count} {ending}" for ending, count in sorted(what.endings.items())]
    if what.restarts:
        parts.append(f"{what.restarts} of them begun anew")
    if what.short:
        parts.append(f"{what.short} with tokens missing")
    return ", ".join(parts) + f"; the last after {what.e2e_max_s:.1f} s"


def _seconds(took_s: float | None) -> str:
    return "never" if took_s is None else f"{took_s:.1f} s"


def _seen(seen: Seen) -> str:
    after = "" if seen.e2e_ms is None else f" after {seen.e2e_ms / 1000:.1f} s"
    status = seen.detail.split(" ", 1)[0].rstrip(":") if seen.ending != "whole" else ""
    return f"{seen.ending}{after}" + (f" ({status})" if status else "")


CASES: Mapping[str, Callable[[FaultReport], str]] = {
    "client leaves a stream": lambda r: _freed(r.leave_stream_s),
    "client leaves, not streamed": lambda r: _freed(r.leave_whole_s),
    "client cancels": lambda r: _freed(r.cancel_s),
    "one of two engines killed, 8 running": lambda r: _in_flight(r.killed),
    "the next 100 requests: failed": lambda r: str(r.after_kill_failed),
    "the next 100 requests: TTFT p95": lambda r: f"{r.after_kill_ttft_p95_ms:.0f} ms",
    "killed engine starts again: first request": lambda r: _seconds(r.back_s),
    "no engine left: a request": lambda r: (
        _seen(r.down) + (", names a worker's address" if r.down_names_worker else "")
    ),
    "no engine left, one starts 1 s later": lambda r: _seen(r.down_then_back),
    "SIGTERM in front, 4 running": lambda r: _in_flight(r.term),
    "SIGTERM in front: gone after": lambda r: _seconds(r.term_exit_s),
}


def grid(reports: Sequence[FaultReport]) -> tuple[list[str], list[list[str]]]:
    """Headings and lines."""
    lines = [[case, *(write(report) for report in reports)] for case, write in CASES.items()]
    return ["", *(report.target for report in reports)], lines


def rich_table(reports: Sequence[FaultReport]) -> Table:
    """For a terminal."""
    headings, lines = grid(reports)
    table = Table(title="When something breaks", title_justify="left", show_lines=True)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for line in lines:
        table.add_row(*line)
    return table


def as_json(reports: Sequence[FaultReport]) -> list[dict[str, object]]:
    """Everything that was seen; what is not a number is null."""
    return [
        {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in asdict(report).items()
        }
        for report in reports
    ]
