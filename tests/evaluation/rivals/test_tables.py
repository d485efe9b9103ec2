"""From what was seen to figures, and from figures to tables."""

import csv
import io
import json
import math
import os
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from evaluation.rivals import fault_table, tables
from evaluation.rivals.cases import Contender, Row, contenders
from evaluation.rivals.engines import Engines
from evaluation.rivals.faults import FaultReport, InFlight
from evaluation.rivals.machine import Meter, Used
from evaluation.rivals.measure import Idle, Measured, Plan, summarise
from evaluation.rivals.seen import Seen
from evaluation.rivals.targets import Target
from evaluation.rivals.workload import alone_ms, arrivals
from pipeline.errors import UsageError
from pipeline.policies import DEFAULT_POLICY

PLAN = Plan(Engines(2, 1.0, 1), load=0.5, seconds=1, idle_requests=1)
IDLE = Idle(20.0, 30.0, 100.0)


def enter(_engines: Engines, _folder: Path) -> "nullcontext[Target]":
    raise AssertionError("nothing is started here")


def measured(seen: list[Seen]) -> Measured:
    sent = arrivals("load", len(seen), 1, 1)
    used = [Used(1.0, 2.0, 0.4, 0.5), Used(6.0, 3.0, 0.2, 0.7)]
    return summarise(PLAN, sent, seen, IDLE, used)


def whole(number: int, e2e_ms: float, instance: str = "i0") -> Seen:
    return Seen(f"{number}", "whole", e2e_ms / 2, e2e_ms, 5, instance)


def row(
    case: str = "equal", seed: int = 1, e2e_p99: float = 1000.0, e2e_mean: float = 1000.0
) -> Row:
    made = replace(measured([whole(0, 1000.0)]), e2e_p99=e2e_p99, e2e_mean=e2e_mean)
    return Row(case, seed, Contender("router", "rule", enter), Idle(15.0, 20.0, 90.0), made)


def test_slowdown_is_against_the_same_request_alone() -> None:
    sent = arrivals("load", 3, 1, 1)
    alone = [alone_ms(arrival, PLAN.engines.ordinary) for arrival in sent]
    seen = [whole(number, ms * (number + 1)) for number, ms in enumerate(alone)]
    figures = measured(seen)
    assert figures.slowdown_mean == pytest.approx(2.0)
    assert figures.slowdown_p99 == pytest.approx(2.98)
    assert figures.e2e_mean == pytest.approx(sum(one.e2e_ms or 0 for one in seen) / 3)


def test_what_failed_is_counted_and_not_averaged() -> None:
    figures = measured(
        [whole(0, 100.0), Seen("1", "cut", 10.0, 1.0, 2, "i1"), Seen("2", "late", None, 9e9)]
    )
    assert figures.failed == {"cut": 1, "late": 1}
    assert (figures.e2e_mean, figures.ttft_p50) == (100.0, 50.0)
    assert figures.shares == {"i0": pytest.approx(1 / 3), "i1": pytest.approx(1 / 3)}


def test_shares_are_of_the_sending_and_cpu_time_of_all() -> None:
    figures = measured([whole(0, 100.0), whole(1, 100.0)])
    assert (figures.own_share, figures.idle_share) == (0.4, 0.5)
    assert (figures.dispatch_cpu_ms, figures.engine_cpu_ms) == (3.0, 1.5)


def test_a_meter_counts_this_process_and_the_sessions_it_is_given() -> None:
    meter = Meter([os.getsid(0)], [])
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    used = meter.so_far()
    assert used.dispatch_cpu_ms >= 80 and used.engine_cpu_ms == 0
    assert used.own_share > 0 and 0 <= used.idle_share <= 1


def test_nothing_whole_is_no_number() -> None:
    figures = measured([Seen("1", "refused", None, 1.0)])
    assert math.isnan(figures.e2e_mean) and math.isnan(figures.ttft_p99)
    json.dumps(tables.as_json([row(e2e_mean=math.nan)]), allow_nan=False)


def test_seeds_become_a_range_and_equal_values_one_figure() -> None:
    rows = [row(seed=1, e2e_p99=1000.0), row(seed=2, e2e_p99=2500.0), row("one slower")]
    headings, (line,) = tables.grid(rows, "equal")
    cells = dict(zip(headings, line, strict=True))
    assert cells["E2E p99 s"] == "1.0–2.5"  # noqa: RUF001  a range has a dash
    assert cells["TTFT p50 ms"] == "500"
    assert cells["added ms"] == "5.0"
    assert cells[""] == "router rule"
    page = tables.markdown(headings, [line])
    assert len({text.count("|") for text in page.splitlines()}) == 1


def test_csv_has_every_run() -> None:
    read = list(csv.DictReader(io.StringIO(tables.as_csv([row(seed=1), row(seed=2)]))))
    assert [line["seed"] for line in read] == ["1", "2"]
    assert read[0]["e2e_mean"] == "1000.0" and read[0]["target"] == "router"
    assert read[0]["idle_ttft_p50"] == "20.0" and read[0]["shares"] == "100"


def test_the_rich_table_shows_every_column() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(tables.rich_table([row()], "equal"))
    text = console.export_text()
    assert "router rule" in text
    for heading in tables.COLUMNS:
        assert heading in text


def fault_report(**changes: object) -> FaultReport:
    base = FaultReport(
        target="router",
        leave_stream_s=0.02,
        leave_whole_s=None,
        cancel_s=math.nan,
        killed=InFlight({"whole": 4, "cut": 4}, 0, 0, 4.8),
        after_kill_failed=0,
        after_kill_ttft_p95_ms=57.0,
        back_s=None,
        down=Seen("d", "refused", None, 400.0, detail="500 no workers"),
        down_names_worker=True,
        down_then_back=Seen("d", "whole", 5000.0, 5100.0),
        term=InFlight({"whole": 4}, 4, 1, 2.4),
        term_exit_s=2.5,
    )
    return replace(base, **changes)  # type: ignore[arg-type]  # as the fields are


def test_faults_are_written_in_words() -> None:
    headings, lines = fault_table.grid([fault_report()])
    assert headings == ["", "router"]
    said = dict(lines)
    assert said["client leaves a stream"] == "stops after 20 ms"
    assert said["client leaves, not streamed"] == "works on for more than 4 s"
    assert said["client cancels"] == "no such thing"
    assert said["one of two engines killed, 8 running"] == "4 cut, 4 whole; the last after 4.8 s"
    assert said["killed engine starts again: first request"] == "never"
    assert said["no engine left: a request"] == (
        "refused after 0.4 s (500), names a worker's address"
    )
    assert said["no engine left, one starts 1 s later"] == "whole after 5.1 s"
    assert said["SIGTERM in front, 4 running"] == (
        "4 whole, 4 of them begun anew, 1 with tokens missing; the last after 2.4 s"
    )
    json.dumps(fault_table.as_json([fault_report()]), allow_nan=False)


def test_what_was_in_flight_is_told_apart() -> None:
    seen = [
        Seen("0", "whole", 1.0, 900.0, tokens=10),
        Seen("1", "whole", 1.0, 2000.0, tokens=9, restarts=1),
        Seen("2", "cut", 1.0, 500.0, tokens=4),
    ]
    assert InFlight.of(seen, tokens=10) == InFlight({"whole": 2, "cut": 1}, 1, 1, 2.0)


def test_every_policy_is_a_row_and_one_of_each_is_broken() -> None:
    rows = contenders([])
    assert len({one.label for one in rows}) == len(rows)
    with_rig = [one.label for one in rows if one.enter_rig is not None]
    assert with_rig == [
        "sglang-router cache_aware",
        "vllm-router cache_aware",
        "smg cache_aware",
        f"astrolabe {DEFAULT_POLICY}",
    ]
    only = contenders(["least_outstanding"])
    assert [one.label for one in only] == ["astrolabe least_outstanding:2"]
    with pytest.raises(UsageError, match="--only nginx: nothing of"):
        contenders(["nginx"])
