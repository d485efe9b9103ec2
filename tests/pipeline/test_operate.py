"""`astrolabe explain` and `drain`: what an operator sees of one request and of one instance."""

import asyncio
import json

import pytest
from rich.console import Console

from pipeline.bus import Bus
from pipeline.cli.app import main
from pipeline.codec import encode
from pipeline.explain import explained
from pipeline.messages import (
    Candidate,
    Decision,
    ErrorBody,
    LengthEstimate,
    Prediction,
    Result,
    Trace,
    Usage,
)


def result(**more: object) -> Result:
    prediction = Prediction(
        instance="i0", ttft_ms=81.2, e2e_ms=2345.6, cost=2345.6, state_age_ms=14.0, preemptions=1
    )
    fields: dict[str, object] = {
        "id": "r1",
        "client": "c",
        "model": "default",
        "status": "done",
        "attempt": 2,
        "crashes": 1,
        "finish_reason": "stop",
        "text": "a secret",
        "instance": "i0",
        "usage": Usage(prompt_tokens=12, completion_tokens=34),
        "estimate": LengthEstimate(p10=10, p50=40, p90=90, source="length-2"),
        "decision": Decision(
            policy="sifted",
            reason="cost",
            candidates=[
                Candidate(instance="i0", outcome="predicted", prediction=prediction, in_flight=3),
                Candidate(instance="i7", outcome="timeout", in_flight=5),
            ],
        ),
        "trace": Trace(
            sent_at_ms=1000.0,
            dispatched_at_ms=1020.0,
            engine_accepted_at_ms=1025.0,
            first_token_at_ms=1110.0,
            finished_at_ms=3520.0,
        ),
        **more,
    }
    return Result(**fields)  # type: ignore[arg-type]


def shown(one: Result) -> str:
    console = Console(width=140, record=True, quiet=False, file=None)
    with console.capture() as capture:
        console.print(explained(one))
    return capture.get()


def test_who_was_asked_what_they_said_and_what_came() -> None:
    text = shown(result())
    for told in ("sifted", "2,346", "timeout", "2,500.0", "90.0", "after 1 that crashed"):
        assert told in text
    assert "secret" not in text


def test_an_error_is_told_with_its_code() -> None:
    error = ErrorBody(code="deadline_exceeded", message="too late")
    text = shown(result(status="error", finish_reason=None, error=error, decision=None))
    assert "deadline_exceeded: too late" in text


def test_a_fallback_is_told() -> None:
    decision = Decision(policy="sifted", reason="in_flight", fallback=True)
    assert "nobody answered" in shown(result(decision=decision))


async def test_explain_reads_the_stored_result(
    bus: Bus, capsys: pytest.CaptureFixture[str]
) -> None:
    await bus.jetstream.store(bus.subjects.result("c", "r1"), encode(result()), expect_last=0)
    arguments = ["explain", "r1", "--client", "c", "--json", "--url", bus.settings.url]
    assert await asyncio.to_thread(main, arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["instance"], told.get("text", "")) == ("i0", "")
    arguments[1] = "r2"
    assert await asyncio.to_thread(main, arguments) == 2
    assert "no result of c.r2" in capsys.readouterr().err


async def test_drain_of_nobody_says_so(bus: Bus, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["drain", "nobody", "--url", bus.settings.url]
    assert await asyncio.to_thread(main, arguments) == 2
    assert "nobody" in capsys.readouterr().err
