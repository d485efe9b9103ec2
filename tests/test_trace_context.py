"""A trace context goes through every hop, also through a rescue, and nothing else does."""

import asyncio
import json
import signal
from dataclasses import replace

import pytest

from pipeline.bus import Bus, Message
from pipeline.stack import LocalStack, StackSettings
from pipeline.subjects import Header
from pipeline.trace_context import read_traceparent
from tests.waiting import eventually

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STACK = StackSettings(instances=2, seed=1, tagger_args=("--estimator=length",))


@pytest.mark.parametrize(
    "value", ["", "yes", TRACE.upper(), TRACE + "0", TRACE + "\r\nx: y", "00-1-2-03", "é" * 55]
)
def test_what_is_not_well_formed_is_dropped(value: str) -> None:
    assert read_traceparent({Header.TRACEPARENT: value}) is None
    assert read_traceparent({}) is None
    assert read_traceparent({Header.TRACEPARENT: TRACE}) == TRACE


async def ask(bus: Bus, request: str, **more: object) -> None:
    body = {"id": request, "prompt": "Why is the sky blue?", "max_tokens": 8, **more}
    await bus.request(
        bus.subjects.request("default", "default"),
        json.dumps(body).encode(),
        timeout_s=5,
        headers={Header.TRACEPARENT: TRACE},
    )


async def test_every_hop_repeats_it() -> None:
    async with LocalStack(STACK) as stack:
        bus = await Bus.connect(stack.bus_settings, name="test")
        heard: dict[str, list[str | None]] = {}

        def note(message: Message) -> None:
            hop = message.subject.split(".")[1]
            heard.setdefault(hop, []).append(message.headers.get(Header.TRACEPARENT))

        # Work queues are seen by whoever listens, as any subject is.
        hops = ["request", "tagged", "inbox", "queued", "output", "result", "finished", "history"]
        for hop in hops:
            await bus.subscribe(f"astrolabe.{hop}.>", note)
        await ask(bus, "good")
        await eventually(lambda: "finished" in heard, what="an end")
        await ask(bus, "bad", n=7)  # refused, by an error result
        await eventually(lambda: len(heard["result"]) == 2, what="the refusal")
        await asyncio.sleep(0.2)
        assert sorted(heard) == sorted(hops)
        assert {hop: set(values) for hop, values in heard.items()} == {hop: {TRACE} for hop in hops}
        await bus.close()


async def test_a_request_that_is_handed_back_keeps_it() -> None:
    async with LocalStack(replace(STACK, instances=1, worker_grace_s=0.2)) as stack:
        bus = await Bus.connect(stack.bus_settings, name="test")
        tagged: list[str | None] = []
        await bus.subscribe(
            "astrolabe.tagged.>", lambda m: tagged.append(m.headers.get(Header.TRACEPARENT))
        )
        results: list[Message] = []
        await bus.subscribe("astrolabe.result.>", results.append)
        await ask(bus, "long", max_tokens=4000, ignore_eos=True)
        await eventually(lambda: bool(tagged), what="the first attempt")
        await asyncio.sleep(0.5)
        stack.kill("worker-i0", signal.SIGTERM)
        await eventually(lambda: len(tagged) == 2, within_s=30, what="the second attempt")
        assert tagged == [TRACE, TRACE]
        assert results == []
        await bus.close()
