"""A tagger that dies under load, and one that comes back: real processes over a real server."""

import asyncio

import pytest

from pipeline.client import Client
from pipeline.load import arrival_offsets_s, drive
from pipeline.messages import Request, Result
from pipeline.stack import LocalStack, StackSettings
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(120)

COUNT, RATE = 120, 20.0
STANDING_IN_S = 2.0
ACK_WAIT_S = 2.0
SLACK_S = 1.5
"""For a busy machine."""


async def test_a_tagger_killed_under_load_loses_nothing_and_is_relieved_when_it_returns() -> None:
    settings = StackSettings(
        instances=2, seed=1, worker_args=("--engine-arg", "time_scale=0.05"), worker_grace_s=2
    )
    async with (
        LocalStack(settings) as stack,
        await Client.connect(stack.bus_settings) as client,
    ):

        async def result_of(name: str) -> Result:
            result = await client.result(name)
            assert result is not None
            return result

        async def source_of(name: str) -> str:
            await client.complete(Request(id=name, prompt=f"hello {name}", max_tokens=900))
            estimate = (await result_of(name)).estimate
            assert estimate is not None
            return estimate.source

        model = await source_of("before")
        assert model.startswith("length")
        requests = [Request(id=f"r{n}", prompt=f"prompt {n}", max_tokens=20) for n in range(COUNT)]
        load = asyncio.create_task(drive(client, requests, arrival_offsets_s(COUNT, RATE, 1)))
        await asyncio.sleep(1.0)
        stack.kill("tagger-0")
        outcomes = await load
        assert [outcome.error for outcome in outcomes] == [None] * COUNT
        assert {outcome.attempts for outcome in outcomes} == {1}, "nothing was run twice"

        results = [await result_of(request.id) for request in requests]
        sources = [result.estimate.source for result in results if result.estimate]
        assert {model, "median"} <= set(sources)
        waited_s = [
            (result.trace.tagged_at_ms - result.trace.accepted_at_ms) / 1000
            for result in results
            if result.trace.tagged_at_ms and result.trace.accepted_at_ms
        ]
        assert len(waited_s) == COUNT
        assert max(waited_s) < STANDING_IN_S + ACK_WAIT_S + SLACK_S

        await stack.restart("tagger-0")
        tries = iter(range(1_000))

        async def relieved() -> bool:
            return await source_of(f"after-{next(tries)}") == model

        await eventually(relieved, what="an estimate of the model", within_s=20)
        again = [Request(id=f"s{n}", prompt=f"again {n}", max_tokens=20) for n in range(40)]
        outcomes = await drive(client, again, arrival_offsets_s(40, RATE, 2))
        assert [outcome.error for outcome in outcomes] == [None] * 40
        assert {outcome.attempts for outcome in outcomes} == {1}
