"""REQUESTS to TAGGED on a real server: what is handed on, what is refused, and who is told."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from pipeline.bus import Bus, Message, WorkQueue
from pipeline.bus.topology import tagger_consumer
from pipeline.cancels import Cancels
from pipeline.codec import decode, encode
from pipeline.conclusion import conclude, find_result
from pipeline.estimates import Estimate, Question
from pipeline.intake import Intake
from pipeline.messages import (
    PROMPT_BYTES_MAX,
    Cancel,
    LengthEstimate,
    OutputEvent,
    Request,
    Result,
    TaggedRequest,
)


class Fixed:
    """An estimator that always says the same."""

    async def estimate(self, question: Question) -> Estimate:
        length = LengthEstimate(p10=10.0, p50=100.0, p90=300.0, source="fixed")
        return Estimate(len(question.prompt), length, 1.0)


@pytest.fixture
async def cancels(bus: Bus) -> Cancels:
    cancels = Cancels()
    await cancels.start(bus)
    return cancels


@pytest.fixture
async def intake(bus: Bus, cancels: Cancels) -> AsyncIterator[Intake]:
    intake = Intake(bus, Fixed(), cancels, stage="tagger")
    queue = WorkQueue(bus, tagger_consumer(bus.subjects), intake.handle, in_hand_max=8)
    running = asyncio.create_task(queue.run())
    yield intake
    await queue.stop()
    await running


async def publish(bus: Bus, body: bytes, *, client: str = "c", model: str = "default") -> None:
    """As a plain NATS client does: without a message id."""
    reply = await bus.request(bus.subjects.request(client, model), body, timeout_s=2)
    assert b'"seq"' in reply.data


async def tagged(bus: Bus) -> list[TaggedRequest]:
    stored = await bus.jetstream.read(bus.subjects.tagged_stream, "astrolabe.tagged.*.*")
    return [decode(message.data, TaggedRequest) for message in stored]


async def dead(bus: Bus) -> list[str]:
    stored = await bus.jetstream.read(bus.subjects.dead_stream, "astrolabe.dead.*")
    return [message.headers["Astrolabe-Reason"] for message in stored]


async def eventually_result(bus: Bus, request: str, client: str = "c") -> Result:
    async with asyncio.timeout(5):
        while (result := await find_result(bus, client, request)) is None:
            await asyncio.sleep(0.01)
    return result


async def eventually_tagged(bus: Bus, count: int) -> list[TaggedRequest]:
    async with asyncio.timeout(5):
        while len(found := await tagged(bus)) < count:
            await asyncio.sleep(0.01)
    return found


@pytest.mark.usefixtures("intake")
async def test_a_good_request_is_tagged_and_kept_in_history(bus: Bus) -> None:
    body = encode(Request(id="r1", prompt="hello", max_tokens=50, deadline_ms=5000))
    await publish(bus, body)
    (request,) = await eventually_tagged(bus, 1)
    assert request.key == "c.r1"
    assert bytes(request.request) == body
    assert request.prompt_tokens == 5
    assert (request.estimate.p10, request.estimate.p50, request.estimate.p90) == (10, 50, 50)
    accepted = request.trace.accepted_at_ms
    assert accepted is not None
    assert request.deadline_at_ms == pytest.approx(accepted + 5000)
    async with asyncio.timeout(5):
        while not await bus.jetstream.read(
            bus.subjects.history_stream, "astrolabe.history.c.default"
        ):
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("intake")
async def test_ignore_eos_makes_the_length_known(bus: Bus) -> None:
    await publish(bus, encode(Request(id="r1", prompt="x", max_tokens=77, ignore_eos=True)))
    (request,) = await eventually_tagged(bus, 1)
    assert request.estimate == LengthEstimate(
        p10=77, p50=77, p90=77, source="ignore_eos", capped=True
    )


BAD = [
    (b'{"id":"r1","prompt":"x","max_tokens":-1}', "max_tokens"),
    (b'{"id":"r1","prompt":5}', "prompt"),
    (b'{"id":"r1"}', "prompt"),
    (b'{"id":"r1","prompt":""}', "prompt"),
    (b'{"id":"r1","prompt":"x","on_disconnect":"cancel"}', "on_disconnect"),
    (b'{"id":"r1","prompt":"x","messages":[{"role":"user","content":"x"}]}', "prompt"),
    (b'{"id":"r1","prompt":"x","model":"other/model"}', "model"),
    (b'{"id":"r1","prompt":"' + b"a" * (PROMPT_BYTES_MAX + 1) + b'"}', "prompt"),
]


@pytest.mark.usefixtures("intake")
@pytest.mark.parametrize(("body", "field"), BAD)
async def test_a_bad_request_gets_an_error_and_a_dead_letter(
    bus: Bus, body: bytes, field: str
) -> None:
    events: list[Message] = []
    await bus.subscribe(bus.subjects.output("c", "r1"), events.append)
    await publish(bus, body)
    result = await eventually_result(bus, "r1")
    assert result.status == "error"
    assert result.error is not None
    assert result.error.code == "bad_request"
    assert result.error.field == field
    await asyncio.sleep(0.05)
    (event,) = [decode(message.data, OutputEvent) for message in events]
    assert event.final
    assert event.error == result.error
    assert len(await dead(bus)) == 1
    # Nothing loops, and the next request works.
    await publish(bus, encode(Request(id="r2", prompt="x")))
    assert [request.id for request in await eventually_tagged(bus, 1)] == ["r2"]
    assert len(await dead(bus)) == 1


@pytest.mark.usefixtures("intake")
@pytest.mark.parametrize("body", [b"not json", b"", b'{"id":"a.b","prompt":"x"}', b"[1]"])
async def test_what_has_no_readable_id_is_buried(bus: Bus, body: bytes) -> None:
    await publish(bus, body)
    async with asyncio.timeout(5):
        while not await dead(bus):
            await asyncio.sleep(0.01)
    await publish(bus, encode(Request(id="r2", prompt="x")))
    assert len(await eventually_tagged(bus, 1)) == 1


@pytest.mark.usefixtures("intake")
async def test_a_repeated_id_is_noted_without_ending_the_first(bus: Bus) -> None:
    events: list[Message] = []
    await bus.subscribe(bus.subjects.output("c", "r1"), events.append)
    await publish(bus, encode(Request(id="r1", prompt="first")))
    await eventually_tagged(bus, 1)
    await publish(bus, encode(Request(id="r1", prompt="second")))
    async with asyncio.timeout(5):
        while not events:
            await asyncio.sleep(0.01)
    note = decode(events[0].data, OutputEvent)
    assert note.attempt == 0
    assert not note.final
    assert note.error is not None
    assert note.error.code == "duplicate_id"
    assert len(await tagged(bus)) == 1
    assert await find_result(bus, "c", "r1") is None


@pytest.mark.usefixtures("intake")
async def test_a_repeated_id_that_is_done_gets_its_stored_result(bus: Bus) -> None:
    await publish(bus, encode(Request(id="r1", prompt="x")))
    await eventually_tagged(bus, 1)
    done = Result(id="r1", client="c", model="default", status="done", attempt=1, text="hi")
    await conclude(bus, done)
    events: list[Message] = []
    await bus.subscribe(bus.subjects.output("c", "r1"), events.append)
    await publish(bus, encode(Request(id="r1", prompt="x")))
    async with asyncio.timeout(5):
        while not events:
            await asyncio.sleep(0.01)
    event = decode(events[0].data, OutputEvent)
    assert event.event == "done"
    assert event.final


async def test_a_request_whose_deadline_passed_is_answered_not_tagged(
    bus: Bus, cancels: Cancels
) -> None:
    await publish(bus, encode(Request(id="r1", prompt="x", deadline_ms=1)))
    await asyncio.sleep(0.05)
    intake = Intake(bus, Fixed(), cancels, stage="tagger")
    queue = WorkQueue(bus, tagger_consumer(bus.subjects), intake.handle, in_hand_max=8)
    running = asyncio.create_task(queue.run())
    result = await eventually_result(bus, "r1")
    assert result.error is not None
    assert result.error.code == "deadline_exceeded"
    assert await tagged(bus) == []
    await queue.stop()
    await running


async def test_a_cancel_sent_while_the_tagger_was_down_is_kept(bus: Bus) -> None:
    await publish(bus, encode(Request(id="r1", prompt="x")))
    await bus.jetstream.store(
        bus.subjects.cancel("c", "r1"), encode(Cancel(id="r1")), message_id="x"
    )
    cancels = Cancels()
    await cancels.start(bus)
    intake = Intake(bus, Fixed(), cancels, stage="tagger")
    queue = WorkQueue(bus, tagger_consumer(bus.subjects), intake.handle, in_hand_max=8)
    running = asyncio.create_task(queue.run())
    result = await eventually_result(bus, "r1")
    assert result.error is not None
    assert result.error.code == "cancelled"
    await queue.stop()
    await running


@pytest.mark.parametrize("body", [b"", b"{}", b'{"id":"other"}', b'{"stream":"X","seq":1}'])
async def test_a_body_that_is_no_cancel_cancels_nothing(
    bus: Bus, cancels: Cancels, body: bytes
) -> None:
    await bus.publish(bus.subjects.cancel("c", "r1"), body)
    await bus.flush()
    await asyncio.sleep(0.05)
    assert "c.r1" not in cancels


async def test_two_writers_of_a_result_agree_on_the_first(bus: Bus) -> None:
    first = Result(id="r1", client="c", model="m", status="done", attempt=1, text="one")
    second = Result(id="r1", client="c", model="m", status="done", attempt=2, text="two")
    committed = await asyncio.gather(conclude(bus, first), conclude(bus, second))
    assert committed[0] == committed[1]
    assert committed[0] in (first, second)
    assert await find_result(bus, "c", "r1") == committed[0]
