"""The whole way of one request: real processes over a real NATS server."""

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import nats
import pytest

from pipeline.bus import Bus
from pipeline.child import Child
from pipeline.client import Client
from pipeline.errors import (
    BadRequest,
    DuplicateId,
    MessageTooLarge,
    ModelNotFound,
    PromptTooLong,
    RequestError,
)
from pipeline.load import arrival_offsets_s, drive
from pipeline.messages import ChatMessage, OutputEvent, Request, Result
from pipeline.prompts import as_request, choose, read_prompts
from pipeline.stack import LocalStack, StackSettings
from pipeline.status import read_status
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(150)

FAST = ("--engine-arg", "time_scale=0.05")


@pytest.fixture
async def stack() -> AsyncIterator[LocalStack]:
    """Two instances, a tagger with its model, a dispatcher."""
    settings = StackSettings(instances=2, seed=1, worker_args=FAST, worker_grace_s=2)
    async with LocalStack(settings) as running:
        yield running


@pytest.fixture
async def client(stack: LocalStack) -> AsyncIterator[Client]:
    async with await Client.connect(stack.bus_settings) as connected:
        yield connected


async def events_of(client: Client, request: Request) -> list[OutputEvent]:
    async with aclosing(client.stream(request)) as events:
        return [event async for event in events]


async def result_of(client: Client, request_id: str) -> Result:
    result = await client.result(request_id)
    assert result is not None
    return result


async def test_tokens_come_in_order_and_the_final_event_is_the_stored_result(
    client: Client,
) -> None:
    events = await events_of(client, Request(id="r1", prompt="Why is the sky blue?", max_tokens=80))
    assert [event.sequence for event in events] == list(range(len(events)))
    assert [event.final for event in events] == [False] * (len(events) - 1) + [True]
    result = await result_of(client, "r1")
    assert result.status == "done"
    assert result.text == "".join(event.text for event in events)
    assert result.usage is not None
    assert result.usage.completion_tokens == sum(event.tokens for event in events)
    assert result.estimate is not None
    assert result.estimate.source.startswith("length-"), "the model made the estimate"
    assert result.decision is not None
    assert [c.outcome for c in result.decision.candidates] == ["predicted", "predicted"]
    trace = [value for value in _instants(result) if value is not None]
    assert trace == sorted(trace)
    assert len(trace) == 11


def _instants(result: Result) -> list[float | None]:
    trace = result.trace
    return [
        trace.sent_at_ms,
        trace.accepted_at_ms,
        trace.tagger_received_at_ms,
        trace.tagged_at_ms,
        trace.dispatcher_received_at_ms,
        trace.probed_at_ms,
        trace.dispatched_at_ms,
        trace.worker_received_at_ms,
        trace.engine_accepted_at_ms,
        trace.first_token_at_ms,
        trace.finished_at_ms,
    ]


async def test_chat_messages_are_answered(client: Client) -> None:
    messages = [ChatMessage(role="user", content="Hello"), ChatMessage(role="user", content="?")]
    done = await client.complete(Request(id="r1", messages=messages, max_tokens=10))
    assert done.text


async def test_the_bundled_sample_is_answered_and_every_instance_works(client: Client) -> None:
    rows = choose(read_prompts(None), 60, seed=3)
    requests = [as_request(row, f"r{number}") for number, row in enumerate(rows)]
    outcomes = await drive(client, requests, arrival_offsets_s(60, 60.0, seed=3))
    assert [outcome.error for outcome in outcomes] == [None] * 60
    assert {o.result.instance for o in outcomes if o.result} == {"i0", "i1"}


async def test_a_plain_nats_client_needs_nothing_of_ours(stack: LocalStack) -> None:
    connection = await nats.connect(stack.url)
    answer = await connection.subscribe("astrolabe.output.default.plain")
    body = {"id": "plain", "prompt": "Why is the sky blue?", "max_tokens": 20}
    accepted = await connection.request(
        "astrolabe.request.default.default", json.dumps(body).encode(), timeout=2
    )
    assert json.loads(accepted.data)["seq"] == 1
    text, event = "", {"event": ""}
    while event["event"] not in ("done", "error"):
        event = json.loads((await answer.next_msg(timeout=10)).data)
        text += event.get("text", "")
    assert event["event"] == "done"
    stored = await connection.request(
        "$JS.API.DIRECT.GET.ASTROLABE_RESULTS.astrolabe.result.default.plain", timeout=2
    )
    assert json.loads(stored.data)["text"] == text
    await connection.close()


async def test_every_kind_of_bad_input_is_answered_and_nothing_breaks(
    stack: LocalStack, client: Client
) -> None:
    # Refused here, before the wire.
    with pytest.raises(BadRequest, match="id"):
        await client.complete(Request(id="a.b", prompt="x"))
    with pytest.raises(BadRequest, match="prompt has"):
        await client.complete(Request(id="big", prompt="x" * (1024 * 1024 + 1)))
    # Refused by the stack: each gets an `error` that names the field.
    with pytest.raises(PromptTooLong) as too_long:
        await client.complete(Request(id="long", prompt="word " * 60_000))
    assert (too_long.value.field, bool(too_long.value.limit)) == ("prompt", True)
    with pytest.raises(ModelNotFound) as no_model:
        await client.complete(Request(id="model", prompt="x", model="nobody/serves-this"))
    assert no_model.value.field == "model"
    with pytest.raises(RequestError) as metadata:
        await client.complete(Request(id="meta", prompt="x", metadata={"response_tokens": "many"}))
    assert metadata.value.field == "metadata.response_tokens"
    # What our client would never send: straight onto the bus.
    bus = await Bus.connect(stack.bus_settings, name="test")
    bodies = {
        "max_tokens": b'{"id":"raw1","prompt":"x","max_tokens":-1}',
        "prompt": b'{"id":"raw2","prompt":["x"]}',
        "n": b'{"id":"raw3","prompt":"x","n":4}',
    }
    for number, (field, body) in enumerate(bodies.items(), 1):
        await bus.request(bus.subjects.request("default", "default"), body, timeout_s=2)
        await eventually(lambda n=number: _ended(client, f"raw{n}"), what=field)  # type: ignore[misc]
        result = await result_of(client, f"raw{number}")
        assert result.error is not None
        assert (result.error.code, result.error.field) == ("bad_request", field)
    for body in (b"not json", b"", b'{"id":"with.dot","prompt":"x"}', b"[" * 100_000):
        await bus.request(bus.subjects.request("default", "default"), body, timeout_s=2)
    await eventually(lambda: _dead_letters(bus, 7), what="seven dead letters")
    with pytest.raises(MessageTooLarge):
        await bus.publish(bus.subjects.request("default", "default"), b"x" * (9 * 1024 * 1024))
    assert bus.connected
    await bus.close()
    # And after all that: everybody lives, nothing is left over, the next request works.
    assert (await client.complete(Request(id="good", prompt="hello", max_tokens=5))).text
    assert all(child.running for child in stack.processes.values())


async def _ended(client: Client, request_id: str) -> bool:
    return await client.result(request_id) is not None


async def _dead_letters(bus: Bus, count: int) -> bool:
    found = await bus.jetstream.read(bus.subjects.dead_stream, "astrolabe.dead.tagger")
    assert len(found) <= count
    return len(found) == count and all(m.headers["Astrolabe-Reason"] for m in found)


async def test_no_prompt_and_no_answer_is_in_any_log(stack: LocalStack, client: Client) -> None:
    marker = "xyzzy-7316"
    answer = await client.complete(Request(id="good", prompt=f"tell me {marker}", max_tokens=30))
    with pytest.raises(PromptTooLong):
        await client.complete(Request(id="long", prompt=f"{marker} " * 30_000))
    bus = await Bus.connect(stack.bus_settings, name="test")
    for body in (
        b'{"id":"bad","prompt":"%s","max_tokens":-1}' % marker.encode(),
        b'{"id":"bad.id","prompt":"%s"}' % marker.encode(),
        marker.encode(),
    ):
        await bus.request(bus.subjects.request("default", "default"), body, timeout_s=2)
    await eventually(lambda: _dead_letters(bus, 3), what="three dead letters")
    await bus.close()
    logs = {path.name: path.read_text() for path in stack.logs.iterdir()}
    assert logs
    for name, text in logs.items():
        assert marker not in text, name
        assert answer.text[:40] not in text, name


async def test_a_request_id_used_twice(client: Client) -> None:
    long = Request(id="r1", prompt="x", max_tokens=4000, ignore_eos=True)
    async with aclosing(client.stream(long)) as events:
        await anext(events)
        with pytest.raises(DuplicateId):
            await client.complete(Request(id="r1", prompt="another"))
    done = await client.complete(Request(id="r2", prompt="x", max_tokens=5))
    assert await client.complete(Request(id="r2", prompt="x", max_tokens=5)) == done


async def test_failure_3_a_reader_that_stops_reading_harms_nobody_else(
    stack: LocalStack, client: Client
) -> None:
    # It hears everybody's tokens, and never takes one from its socket.
    host, port = stack.url.removeprefix("nats://").split(":")
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((host, int(port)))
        deaf.sendall(b"CONNECT {}\r\nSUB astrolabe.> 1\r\nPING\r\n")
        requests = [
            Request(id=f"r{n}", prompt="Tell me more.", max_tokens=400, ignore_eos=True)
            for n in range(24)
        ]
        answers = await asyncio.gather(*(client.complete(request) for request in requests))
    for request, answer in zip(requests, answers, strict=True):
        assert answer.text == (await result_of(client, request.id)).text
        assert (answer.usage and answer.usage.completion_tokens, answer.attempt) == (400, 1)
    assert all(child.running for child in stack.processes.values())


async def test_a_cancel_reaches_the_engine(client: Client) -> None:
    request = Request(id="r1", prompt="x", max_tokens=4000, ignore_eos=True)
    seen: list[OutputEvent] = []
    async with aclosing(client.stream(request)) as events:
        async for event in events:
            if not seen:
                await client.cancel("r1")
            seen.append(event)
    assert seen[-1].error is not None
    assert seen[-1].error.code == "cancelled"


async def _two_pull_each(bus: Bus) -> bool:
    status = await read_status(bus)
    pulls = {c.consumer: c.waiting_pulls for c in status.consumers}
    return pulls.get("tagger") == pulls.get("dispatcher") == 2


async def test_two_taggers_and_two_dispatchers_share_without_configuration() -> None:
    settings = StackSettings(
        instances=2, taggers=2, dispatchers=2, seed=1, worker_args=FAST, worker_grace_s=2
    )
    async with (
        LocalStack(settings) as stack,
        await Client.connect(stack.bus_settings) as client,
    ):
        bus = await Bus.connect(stack.bus_settings, name="test")
        await eventually(lambda: _two_pull_each(bus), what="two pulls of each stage")
        requests = [Request(id=f"r{n}", prompt="hello", max_tokens=30) for n in range(80)]
        load = asyncio.create_task(drive(client, requests, arrival_offsets_s(80, 20.0, 1)))
        await asyncio.sleep(1.5)
        stack.kill("tagger-0")
        stack.kill("dispatcher-1")
        outcomes = await load
        assert [outcome.error for outcome in outcomes] == [None] * 80
        assert {outcome.attempts for outcome in outcomes} == {1}
        await bus.close()


async def test_an_instance_that_joins_late_gets_work_within_three_seconds(
    stack: LocalStack, client: Client, tmp_path: Path
) -> None:
    def start(role: str, *more: str) -> Child:
        command = [sys.executable, "-m", "pipeline.cli", role, "--url", stack.url]
        return Child([*command, "--instance", "late", *more], tmp_path / f"{role}.log")

    parts = [start("worker", *FAST), start("predictor")]
    try:
        bus = await Bus.connect(stack.bus_settings, name="test")
        heard = asyncio.Event()
        await bus.subscribe(bus.subjects.heartbeat("late"), lambda _: heard.set())
        await asyncio.wait_for(heard.wait(), 20)
        instances: set[str | None] = set()
        async with asyncio.timeout(3):
            number = 0
            while "late" not in instances:
                request = Request(id=f"r{number}", prompt="x", max_tokens=2)
                instances.add((await client.complete(request)).instance)
                number += 1
        await bus.close()
    finally:
        for part in parts:
            await part.stop(5)


async def test_without_predictors_the_dispatcher_falls_back(
    stack: LocalStack, client: Client
) -> None:
    stack.kill("predictor-i0")
    await client.complete(Request(id="r1", prompt="x", max_tokens=2))
    assert (await result_of(client, "r1")).instance == "i1", "a silent candidate is passed over"
    stack.kill("predictor-i1")
    for number in range(2, 6):
        await client.complete(Request(id=f"r{number}", prompt="x", max_tokens=2))
    decision = (await result_of(client, "r5")).decision
    assert decision is not None
    assert decision.fallback


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_lost_workers_request_is_restarted_elsewhere(
    stack: LocalStack, client: Client, number: signal.Signals
) -> None:
    await asyncio.sleep(10)  # dispatchers call nobody dead before they have listened for a while
    request = Request(id="r1", prompt="x", max_tokens=3000, ignore_eos=True, deadline_ms=30_000)
    seen: list[OutputEvent] = []
    async with aclosing(client.stream(request)) as events:
        async for event in events:
            if not seen:
                assert event.instance is not None
                stack.kill(f"worker-{event.instance}", number)
            seen.append(event)
    last = seen[-1]
    assert last.event == "done"
    assert last.attempt == 2
    assert last.instance != seen[0].instance
    assert "restart" in [event.event for event in seen]
    result = await result_of(client, "r1")
    assert result.crashes == 1
    second = "".join(event.text for event in seen if event.attempt == 2)
    assert second == result.text
    if number is signal.SIGSTOP:
        frozen = f"worker-{seen[0].instance}"
        stack.kill(frozen, signal.SIGCONT)
        await asyncio.sleep(2.5)
        assert stack.processes[frozen].running, stack.processes[frozen].log_tail(60)
        assert await result_of(client, "r1") == result, "the returned worker changed nothing"
