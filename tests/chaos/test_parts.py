"""The schedule of faults, the wire that is cut, and the counting of what became of it all."""

import asyncio
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.chaos.audit import Audit, Seen, audit
from bench.chaos.faults import KINDS, Fault, schedule
from bench.chaos.proxy import Wire
from pipeline.messages import ErrorBody, OutputEvent, Result

COMPONENTS = (
    *("tagger-0", "tagger-1", "dispatcher-0", "dispatcher-1", "nats"),
    *(f"{role}-i{n}" for role in ("worker", "predictor") for n in range(4)),
)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.floats(3, 2000))
def test_faults_come_one_after_the_other(seed: int, length_s: float) -> None:
    faults = schedule(COMPONENTS, length_s, seed)
    assert faults == schedule(COMPONENTS, length_s, seed)
    assert all(fault.at_s < length_s and fault.component in COMPONENTS for fault in faults)
    for before, after in pairwise(faults):
        assert after.at_s >= before.at_s + before.down_s + 1.0


@settings(deadline=None)
@given(st.integers(0, 10**6))
def test_ten_minutes_have_five_kills_of_every_kind(seed: int) -> None:
    kills = Counter(f.kind for f in schedule(COMPONENTS, 600, seed) if f.how == "kill")
    assert set(kills) == set(KINDS)
    assert min(kills.values()) >= 5


async def test_a_cut_wire_is_silent_and_then_goes_on() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    wire = Wire(server.sockets[0].getsockname()[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", await wire.start())
    writer.write(b"one")
    assert await reader.readexactly(3) == b"one"
    wire.cut()
    writer.write(b"two")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await reader.readexactly(3)
    wire.mend()
    async with asyncio.timeout(5):
        assert await reader.readexactly(3) == b"two"
    writer.close()
    await writer.wait_closed()
    await wire.close()
    server.close()
    await asyncio.sleep(0.05)  # the other ends hear of it


# ---------------------------------------------------------------- the counting


def seen(name: str, text: str | None = "words", **more: object) -> Seen:
    return Seen(name, 1.0, accepted=True, ended_at_s=4.0, text=text, **more)  # type: ignore[arg-type]


def result(name: str, text: str = "words", **more: object) -> Result:
    fields: dict[str, object] = {"status": "done", "attempt": 1, "sequence": 3, **more}
    return Result(id=name, client="c", model="m", text=text, finish_reason="length", **fields)  # type: ignore[arg-type]


def final(name: str, attempt: int = 1, event: str = "done", sequence: int = 3) -> OutputEvent:
    return OutputEvent(
        event=event,  # type: ignore[arg-type]
        id=name,
        attempt=attempt,
        sequence=sequence,
        finish_reason="length",
    )


def count(
    requests: list[Seen],
    results: list[Result],
    finals: list[OutputEvent],
    faults: tuple[Fault, ...] = (),
    stuck: int = 0,
) -> Audit:
    by_request: dict[str, list[OutputEvent]] = {}
    for event in finals:
        by_request.setdefault(event.id, []).append(event)
    return audit(
        requests,
        {one.id: one for one in results},
        by_request,
        faults,
        stuck=stuck,
        resumed=0,
        restarted=0,
    )


def test_all_well() -> None:
    figures = count([seen("a")], [result("a")], [final("a"), final("a")])
    assert (figures.accepted, figures.done, figures.lost) == (1, 1, 0)
    assert (figures.duplicate_finals, figures.repeated_finals, figures.good) == (0, 1, True)


def test_an_accepted_one_without_a_result_is_lost() -> None:
    assert count([seen("a")], [], []).lost == 1
    assert not count([seen("a")], [], []).good


def test_what_is_left_in_a_queue_is_lost() -> None:
    assert not count([seen("a")], [result("a")], [final("a")], stuck=1).good


def test_a_refused_one_is_not_lost_and_one_that_was_stored_all_the_same_counts() -> None:
    refused = Seen("a", 1.0, refused="overloaded", ended_at_s=1.1)
    unknown = Seen("b", 1.0, refused="BusUnavailable", ended_at_s=1.1)
    figures = count([refused, unknown], [result("b")], [final("b")])
    assert (figures.accepted, figures.done, figures.lost) == (1, 1, 0)


@pytest.mark.parametrize(
    "finals",
    [
        [final("a"), final("a", attempt=2)],
        [final("a"), final("a", event="error")],
        [final("a", sequence=9)],
    ],
)
def test_two_different_finals_are_found(finals: list[OutputEvent]) -> None:
    figures = count([seen("a")], [result("a")], finals)
    assert figures.duplicate_finals == 1
    assert not figures.good


def test_a_spliced_text_is_found() -> None:
    figures = count([seen("a", text="wor")], [result("a")], [final("a")])
    assert figures.undetected_gaps == 1
    assert not figures.good


def test_more_than_one_in_a_hundred_errors_is_too_many() -> None:
    error = ErrorBody(code="worker_lost", message="three died")
    bad = result("a", status="error", error=error)
    many = [result(f"r{n}") for n in range(99)]
    figures = count([seen("a", None), *(seen(one.id) for one in many)], [bad, *many], [])
    assert figures.errors == {"worker_lost": 1}
    assert figures.good
    assert not count([seen("a", None)], [bad], []).good


def test_recovery_is_the_time_until_what_was_in_hand_had_ended() -> None:
    fault = Fault(2.0, "worker-i0", "kill", 1.0)
    late = Seen("c", 2.5, accepted=True, ended_at_s=9.0, text="words")
    figures = count([seen("a"), late], [result("a"), result("c")], [], (fault,))
    assert figures.recovery_s == {"worker kill": {"median": 2.0, "worst": 2.0}}
    assert figures.slowest_recovery_s == 2.0
    assert figures.kills == {"worker": 1}


def test_a_run_in_which_nothing_was_accepted_proves_nothing() -> None:
    seen = [Seen("r1", 1.0, refused="BusUnavailable")]
    figures = audit(seen, {}, {}, [], stuck=0, resumed=0, restarted=0)
    assert (figures.accepted, figures.lost) == (0, 0)
    assert not figures.good
