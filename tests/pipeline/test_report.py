import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pipeline.load import Outcome
from pipeline.messages import (
    Candidate,
    Decision,
    LengthEstimate,
    Prediction,
    Result,
    Trace,
    Usage,
)
from pipeline.report import (
    STAGES,
    Spread,
    added_ms,
    as_json,
    render,
    stage_ms,
    summarise,
    write_json,
)

INSTANTS = (
    "sent_at_ms",
    "accepted_at_ms",
    "tagger_received_at_ms",
    "tagged_at_ms",
    "dispatcher_received_at_ms",
    "probed_at_ms",
    "dispatched_at_ms",
    "worker_received_at_ms",
    "engine_accepted_at_ms",
    "first_token_at_ms",
)
TRACE = Trace(
    sent_at_ms=1000.0,
    accepted_at_ms=1000.5,
    tagger_received_at_ms=1001.0,
    estimate_ms=6.0,
    tagged_at_ms=1007.5,
    dispatcher_received_at_ms=1008.0,
    probed_at_ms=1010.0,
    dispatched_at_ms=1010.1,
    worker_received_at_ms=1011.0,
    engine_accepted_at_ms=1011.5,
    first_token_at_ms=1061.5,
    finished_at_ms=2010.0,
)


def outcome(name: str = "r", *, predicted_ms: float = 800.0, instance: str = "a") -> Outcome:
    prediction = Prediction(
        instance="a", ttft_ms=40.0, e2e_ms=predicted_ms, cost=1.0, state_age_ms=0.0
    )
    decision = Decision(
        policy="power_of_two",
        reason="test",
        candidates=[
            Candidate(instance="b", outcome="timeout"),
            Candidate(instance="a", outcome="predicted", prediction=prediction),
        ],
    )
    result = Result(
        id=name,
        client="c",
        model="m",
        status="done",
        attempt=1,
        usage=Usage(prompt_tokens=5, completion_tokens=100),
        estimate=LengthEstimate(p10=10, p50=70, p90=200, source="model"),
        instance=instance,
        preemptions=2,
        decision=decision,
        trace=TRACE,
    )
    return Outcome(name, ttft_ms=61.5, e2e_ms=1011.0, tokens=100, instance=instance, result=result)


def test_the_pipelines_own_latency_leaves_the_model_out() -> None:
    assert added_ms(TRACE) == pytest.approx(11.5 - 6.0)
    assert added_ms(Trace()) is None


@given(st.lists(st.floats(0, 1e6), min_size=10, max_size=10), st.floats(0, 1e3))
def test_the_stages_leave_no_hole(gaps: list[float], estimate_ms: float) -> None:
    instants = dict(zip(INSTANTS, itertools.accumulate(gaps), strict=True))
    trace = Trace(estimate_ms=estimate_ms, **instants)
    parts = [stage_ms(trace, name) for name in STAGES]
    assert sum(part for part in parts if part is not None) == pytest.approx(added_ms(trace))


@pytest.mark.parametrize("finished_at_ms", [1010.0, 900.0])
def test_clocks_that_contradict_each_other_say_nothing_of_predictions(
    finished_at_ms: float,
) -> None:
    one = outcome()
    assert one.result is not None
    trace = msgspec.structs.replace(TRACE, finished_at_ms=finished_at_ms)
    result = msgspec.structs.replace(one.result, trace=trace)
    summary = summarise([replace(one, result=result)], 1.0)
    assert math.isnan(summary.e2e_error_percent)
    assert not math.isnan(summary.ttft_error_percent)


def test_the_instance_is_counted_also_where_the_result_is_gone() -> None:
    assert summarise([replace(outcome(), result=None)], 1.0).per_instance == {"a": 1}


def test_figures_of_a_run() -> None:
    outcomes = [
        outcome("r1"),
        outcome("r2", predicted_ms=1200.0),
        Outcome("r3", error="overloaded"),
    ]
    summary = summarise(outcomes, 10.0)
    assert (summary.requests, summary.failed) == (3, {"overloaded": 1})
    assert summary.per_instance == {"a": 2}
    assert summary.preemptions == 4
    assert summary.ttft_ms.p50 == 61.5
    assert summary.e2e_error_percent == pytest.approx(20.0)
    assert summary.e2e_bias_percent == pytest.approx(0.0)
    assert summary.ttft_error_ms == pytest.approx(abs(40.0 - 51.5))
    assert summary.ttft_bias_percent == pytest.approx((40.0 - 51.5) / 51.5 * 100)
    assert summary.ttft_error_percent == -summary.ttft_bias_percent
    assert summary.length_error_tokens == 30.0
    assert summary.stages_ms["probes"].p50 == pytest.approx(2.0)
    assert summary.added_ms.p50 == pytest.approx(5.5)


def test_a_run_without_an_answer_is_still_reported(tmp_path: Path) -> None:
    summary = summarise([Outcome("r", error="overloaded")], 1.0)
    assert math.isnan(summary.e2e_ms.p50)
    path = tmp_path / "new" / "report.json"
    write_json(path, as_json(summary, seed=3))
    report = json.loads(path.read_text())
    assert report["e2e_ms"] == {"p50": None, "p99": None}
    assert (report["requests"], report["failed"], report["seed"]) == (1, 1, 3)
    Console(quiet=True).print(render(summary))


def test_what_people_and_machines_get_agrees() -> None:
    summary = summarise([outcome()], 1.0)
    report = as_json(summary)
    assert {"requests", "failed", "ttft_ms", "e2e_ms", "per_instance"} <= report.keys()
    console = Console(width=100, record=True, quiet=True)
    with console.capture() as captured:
        console.quiet = False
        console.print(render(summary))
    text = captured.get()
    for piece in ("preemptions", "a", "client publish to engine accept", "E2E bias"):
        assert piece in text


def test_a_run_in_which_nobody_predicted_says_so() -> None:
    placed = outcome()
    assert placed.result is not None
    decision = Decision(
        policy="llumnix",
        reason="lowest load",
        candidates=[Candidate(instance="a", outcome="reported")],
    )
    asked_for_loads = replace(
        placed, result=msgspec.structs.replace(placed.result, decision=decision)
    )
    console = Console(width=100, record=True, quiet=True)
    with console.capture() as captured:
        console.quiet = False
        console.print(render(summarise([asked_for_loads], 1.0)))
    assert "nobody predicted them" in captured.get()
    assert "nan" not in captured.get()


def test_percentiles() -> None:
    assert Spread.of([1.0, 2.0, 3.0]).p50 == 2.0
    assert math.isnan(Spread.of([]).p99)
