import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from pipeline.bus import Bus, Delivery, WorkQueue
from pipeline.bus.topology import tagger_consumer
from pipeline.client import Client
from pipeline.codec import decode
from pipeline.conclusion import conclude
from pipeline.load import Outcome, Tally, arrival_offsets_s, drive
from pipeline.messages import Request, Result, Usage
from tests.waiting import eventually


def test_arrivals_are_poisson_and_repeatable() -> None:
    offsets = arrival_offsets_s(20_000, 8.0, 1)
    assert offsets == arrival_offsets_s(20_000, 8.0, 1)
    assert offsets == sorted(offsets)
    gaps = np.diff(offsets)
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.05)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)


def done(request_id: str) -> Result:
    return Result(
        id=request_id,
        client="c",
        model="default",
        status="done",
        attempt=1,
        finish_reason="stop",
        usage=Usage(prompt_tokens=1, completion_tokens=3),
        instance="a",
    )


@pytest.fixture
async def instant(bus: Bus) -> AsyncIterator[None]:
    """A whole pipeline in one handler: every request is done at once; `bad` ones fail."""

    async def handle(delivery: Delivery) -> None:
        request = decode(delivery.data, Request)
        await conclude(bus, done(request.id))
        await delivery.ack()

    queue = WorkQueue(bus, tagger_consumer(bus.subjects), handle, in_hand_max=8)
    running = asyncio.create_task(queue.run())
    yield
    await queue.stop()
    await running


@pytest.mark.usefixtures("instant")
async def test_every_request_has_an_outcome_with_its_result(bus: Bus) -> None:
    requests = [Request(id=f"r{n}", prompt="x") for n in range(30)]
    tallies: list[int] = []

    def note(tally: Tally) -> None:
        tallies.append(tally.finished)

    async with await Client.connect(bus.settings, client="c") as client:
        outcomes = await drive(client, requests, arrival_offsets_s(30, 200.0, 1), on_change=note)
    assert sorted(outcome.id for outcome in outcomes) == sorted(r.id for r in requests)
    assert {outcome.error for outcome in outcomes} == {None}
    assert {outcome.tokens for outcome in outcomes} == {3}
    assert {outcome.instance for outcome in outcomes} == {"a"}
    assert all(outcome.result is not None for outcome in outcomes)
    assert tallies[-1] == 30


@pytest.mark.usefixtures("instant")
async def test_what_cannot_be_sent_is_a_failure_not_an_end(bus: Bus) -> None:
    requests = [Request(id="a.b", prompt="x"), Request(id="good", prompt="x")]
    async with await Client.connect(bus.settings, client="c") as client:
        outcomes = await drive(client, requests, [0.0, 0.01])
    assert {outcome.id: outcome.error for outcome in outcomes} == {
        "a.b": "bad_request",
        "good": None,
    }


async def test_stopping_sends_nothing_more_and_cancels_what_runs(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.load.STOP_GRACE_S", 0.5)
    requests = [Request(id=f"r{n}", prompt="x") for n in range(50)]
    stop = asyncio.Event()
    async with await Client.connect(bus.settings, client="c") as client:
        driving = asyncio.create_task(
            drive(client, requests, [n * 0.05 for n in range(50)], stop=stop)
        )
        await asyncio.sleep(0.3)
        stop.set()
        outcomes = await driving  # nobody answers the cancels, and it ends all the same
    cancelled = await bus.jetstream.subject_counts(
        bus.subjects.cancel_stream, bus.subjects.all_cancels
    )
    sent = await bus.jetstream.read(bus.subjects.requests_stream, "astrolabe.request.c.*")
    assert 1 <= len(sent) < 50
    assert len(cancelled) == len(sent) == len(outcomes)
    assert {outcome.error for outcome in outcomes} == {"cancelled"}


async def test_one_too_many_fails_and_the_others_are_still_cancelled(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.load.OUTSTANDING_MAX", 2)
    monkeypatch.setattr("pipeline.load.STOP_GRACE_S", 0.5)
    requests = [Request(id=f"r{n}", prompt="x") for n in range(5)]
    stop, refused = asyncio.Event(), asyncio.Event()

    def note(tally: Tally) -> None:
        if tally.failed == 2:
            refused.set()

    async with await Client.connect(bus.settings, client="c") as client:
        driving = asyncio.create_task(
            drive(client, requests, [0, 0, 0.1, 0.1, 1.0], on_change=note, stop=stop)
        )
        await refused.wait()
        await conclude(bus, done("r0"))
        await asyncio.sleep(1.2)  # r4 goes out where r0 made room
        stop.set()
        outcomes = await driving
    assert {outcome.id: outcome.error for outcome in outcomes} == {
        "r0": None,
        "r1": "cancelled",
        "r2": "overloaded",
        "r3": "overloaded",
        "r4": "cancelled",
    }
    cancelled = await bus.jetstream.subject_counts(
        bus.subjects.cancel_stream, bus.subjects.all_cancels
    )
    assert cancelled.keys() == {bus.subjects.cancel("c", name) for name in ("r1", "r4")}


async def test_a_load_that_is_cancelled_leaves_no_task_behind(bus: Bus) -> None:
    async with await Client.connect(bus.settings, client="c") as client:
        before = asyncio.all_tasks()
        driving = asyncio.create_task(drive(client, [Request(id="r1", prompt="x")], [0.0]))
        await eventually(lambda: bool(client._streams), what="sent")
        driving.cancel()
        await asyncio.gather(driving, return_exceptions=True)
        left = asyncio.all_tasks() - before
        assert not [task for task in left if "follow" in repr(task)]
        assert not client._streams


def test_the_tally_knows_the_median_of_the_last_answers() -> None:
    tally = Tally(3)
    assert tally.ttft_p50_ms is None
    for ttft_ms in (10.0, 30.0, 20.0):
        tally.add(Outcome("r", ttft_ms=ttft_ms))
    tally.add(Outcome("r", error="overloaded"))
    assert (tally.finished, tally.failed) == (4, 1)
    assert [tally.ttft_p50_ms] == [20.0]
