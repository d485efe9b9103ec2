import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from pipeline.bus import Bus, Delivery, WorkQueue
from pipeline.bus.topology import tagger_consumer
from pipeline.client import Client
from pipeline.codec import decode
from pipeline.conclusion import conclude
from pipeline.load import Tally, arrival_offsets_s, drive
from pipeline.messages import Request, Result, Usage


def test_arrivals_are_poisson_and_repeatable() -> None:
    offsets = arrival_offsets_s(20_000, 8.0, 1)
    assert offsets == arrival_offsets_s(20_000, 8.0, 1)
    assert offsets == sorted(offsets)
    gaps = np.diff(offsets)
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.05)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)


@pytest.fixture
async def instant(bus: Bus) -> AsyncIterator[None]:
    """A whole pipeline in one handler: every request is done at once; `bad` ones fail."""

    async def handle(delivery: Delivery) -> None:
        request = decode(delivery.data, Request)
        await conclude(
            bus,
            Result(
                id=request.id,
                client="c",
                model="default",
                status="done",
                attempt=1,
                finish_reason="stop",
                usage=Usage(prompt_tokens=1, completion_tokens=3),
                instance="a",
            ),
        )
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


async def test_stopping_sends_nothing_more_and_cancels_what_runs(bus: Bus) -> None:
    requests = [Request(id=f"r{n}", prompt="x") for n in range(50)]
    stop = asyncio.Event()
    async with await Client.connect(bus.settings, client="c") as client:
        driving = asyncio.create_task(
            drive(client, requests, [n * 0.05 for n in range(50)], stop=stop)
        )
        await asyncio.sleep(0.3)
        stop.set()
        await asyncio.sleep(0.3)
        cancelled = await bus.jetstream.subject_counts(
            bus.subjects.cancel_stream, bus.subjects.all_cancels
        )
        sent = await bus.jetstream.read(bus.subjects.requests_stream, "astrolabe.request.c.*")
        assert 1 <= len(sent) < 50
        assert len(cancelled) == len(sent)
        driving.cancel()
        await asyncio.gather(driving, return_exceptions=True)
