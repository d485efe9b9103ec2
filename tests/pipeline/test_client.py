"""The client against a server side that the test plays by hand, on a real bus."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from pipeline.bus import Bus, BusSettings
from pipeline.bus.topology import ensure_topology
from pipeline.client import Client, as_error
from pipeline.codec import decode, encode
from pipeline.conclusion import conclude
from pipeline.errors import (
    BadRequest,
    BusUnavailable,
    Cancelled,
    DeadlineExceeded,
    DuplicateId,
    Overloaded,
    PromptTooLong,
    RequestError,
)
from pipeline.messages import (
    Cancel,
    ErrorBody,
    OutputEvent,
    Request,
    Result,
    Usage,
)
from pipeline.nats_server import CONFIG_FILE, NatsServer
from tests.waiting import eventually


@pytest.fixture
async def client(bus: Bus) -> AsyncIterator[Client]:
    async with await Client.connect(bus.settings, client="c") as connected:
        yield connected


async def say(bus: Bus, request: str, *events: OutputEvent) -> None:
    for event in events:
        await bus.publish(bus.subjects.output("c", request), encode(event))
    await bus.flush()


def tokens(text: str, sequence: int, attempt: int = 1) -> OutputEvent:
    return OutputEvent(
        event="tokens", id="r1", attempt=attempt, sequence=sequence, text=text, tokens=1
    )


def result(text: str, *, attempt: int = 1, sequence: int = 0, **more: object) -> Result:
    fields: dict[str, object] = {"status": "done", "finish_reason": "stop", **more}
    return Result(
        id="r1",
        client="c",
        model="default",
        attempt=attempt,
        sequence=sequence,
        text=text,
        usage=Usage(prompt_tokens=1, completion_tokens=2),
        **fields,  # type: ignore[arg-type]  # the test's own keywords
    )


async def accepted(bus: Bus, count: int = 1) -> list[Request]:
    """Requests that REQUESTS holds."""
    async with asyncio.timeout(5):
        while True:
            stored = await bus.jetstream.read(bus.subjects.requests_stream, "astrolabe.request.c.*")
            if len(stored) >= count:
                return [decode(message.data, Request) for message in stored]
            await asyncio.sleep(0.01)


async def test_a_whole_answer(bus: Bus, client: Client) -> None:
    asking = asyncio.create_task(client.complete(Request(id="r1", prompt="x")))
    (request,) = await accepted(bus)
    assert request.sent_at_ms is not None
    await say(bus, "r1", tokens("a", 0), tokens("b", 1))
    await conclude(bus, result("ab", sequence=2))
    answer = await asking
    assert (answer.text, answer.finish_reason, answer.attempt) == ("ab", "stop", 1)


async def test_lost_events_are_made_good_from_the_result(bus: Bus, client: Client) -> None:
    asking = asyncio.create_task(client.complete(Request(id="r1", prompt="x")))
    await accepted(bus)
    await say(bus, "r1", tokens("a", 0), tokens("c", 2))
    await conclude(bus, result("abc", sequence=3))
    assert (await asking).text == "abc"


async def test_a_restart_discards_what_came_before(bus: Bus, client: Client) -> None:
    asking = asyncio.create_task(client.complete(Request(id="r1", prompt="x")))
    await accepted(bus)
    restart = OutputEvent(event="restart", id="r1", attempt=2, sequence=0)
    await say(bus, "r1", tokens("old", 0), restart, tokens("new", 1, attempt=2))
    await say(bus, "r1", tokens("late", 1))
    await conclude(bus, result("new", attempt=2, sequence=2))
    answer = await asking
    assert (answer.text, answer.attempt) == ("new", 2)


async def test_what_a_resume_leaves_out_comes_from_the_result(bus: Bus, client: Client) -> None:
    asking = asyncio.create_task(client.complete(Request(id="r1", prompt="x")))
    await accepted(bus)
    resume = OutputEvent(event="resume", id="r1", attempt=2, sequence=0, from_token=1)
    await say(bus, "r1", tokens("a", 0), tokens("b", 1), resume, tokens("b", 1, attempt=2))
    await conclude(bus, result("ab", attempt=2, sequence=2))
    answer = await asking
    assert answer.text == "ab"
    assert answer.result is not None


async def test_the_stored_result_counts_when_another_attempt_was_shown(
    bus: Bus, client: Client
) -> None:
    asking = asyncio.create_task(client.complete(Request(id="r1", prompt="x")))
    await accepted(bus)
    restart = OutputEvent(event="restart", id="r1", attempt=2, sequence=0)
    await say(bus, "r1", restart, tokens("second", 1, attempt=2))
    await conclude(bus, result("first", attempt=1, sequence=5))
    answer = await asking
    assert (answer.text, answer.attempt) == ("first", 1)


async def test_a_missed_final_event_is_found_in_the_results(bus: Bus, client: Client) -> None:
    asking = asyncio.create_task(client.complete(Request(id="r1", prompt="x"), quiet_s=0.3))
    await accepted(bus)
    await bus.jetstream.store(
        bus.subjects.result("c", "r1"), encode(result("ab", sequence=2)), expect_last=0
    )
    assert (await asking).text == "ab"


async def test_the_final_event_twice_is_one_end(bus: Bus, client: Client) -> None:
    asking = asyncio.create_task(client.complete(Request(id="r1", prompt="x")))
    await accepted(bus)
    await conclude(bus, result("", sequence=0))
    await conclude(bus, result("", sequence=0))
    assert (await asking).text == ""


async def test_an_error_event_becomes_its_exception(bus: Bus, client: Client) -> None:
    asking = asyncio.create_task(client.complete(Request(id="r1", prompt="x")))
    await accepted(bus)
    error = ErrorBody(code="prompt_too_long", message="too long", field="prompt", limit=4096)
    await conclude(bus, result("", status="error", finish_reason=None, error=error))
    with pytest.raises(PromptTooLong) as caught:
        await asking
    assert (caught.value.field, caught.value.limit) == ("prompt", 4096)


async def test_a_repeated_id_gets_the_stored_result_or_is_refused(bus: Bus, client: Client) -> None:
    asking = asyncio.create_task(client.complete(Request(id="r1", prompt="x")))
    await accepted(bus)
    with pytest.raises(DuplicateId):
        await client.complete(Request(id="r1", prompt="x"))
    await conclude(bus, result("", sequence=0))
    done = await asking
    assert await client.complete(Request(id="r1", prompt="x")) == done
    assert len(await accepted(bus)) == 1


async def test_a_note_about_a_repeat_ends_nothing(bus: Bus, client: Client) -> None:
    asking = asyncio.create_task(client.complete(Request(id="r1", prompt="x")))
    await accepted(bus)
    body = ErrorBody(code="duplicate_id", message="taken")
    note = OutputEvent(event="error", id="r1", attempt=0, sequence=0, error=body)
    await say(bus, "r1", note, tokens("a", 0))
    await conclude(bus, result("a", sequence=1))
    assert (await asking).text == "a"


async def test_nobody_answers_within_the_deadline(
    bus: Bus, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.client.DEADLINE_SLACK_S", 0.2)
    with pytest.raises(DeadlineExceeded):
        await client.complete(Request(id="r1", prompt="x", deadline_ms=100))


async def test_a_reader_still_busy_at_the_deadline_is_not_cancelled(
    bus: Bus, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.client.DEADLINE_SLACK_S", 1.0)
    busy = 0

    async def read() -> None:
        nonlocal busy
        request = Request(id="r1", prompt="x", deadline_ms=300)
        async with aclosing(client.stream(request)) as events:
            async for _event in events:
                await asyncio.sleep(1.0)
                busy += 1

    reading = asyncio.create_task(read())
    await accepted(bus)
    await say(bus, "r1", tokens("a", 0), tokens("b", 1))
    with pytest.raises(DeadlineExceeded):
        await reading
    assert busy == 2  # what had arrived was still read


async def test_a_result_that_is_there_beats_the_deadline(
    bus: Bus, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.client.DEADLINE_SLACK_S", 1.0)
    request = Request(id="r1", prompt="x", deadline_ms=100)
    asking = asyncio.create_task(client.complete(request, quiet_s=60))
    await accepted(bus)
    await bus.jetstream.store(
        bus.subjects.result("c", "r1"), encode(result("ab", sequence=2)), expect_last=0
    )
    assert (await asking).text == "ab"


async def test_a_slow_reader_gets_the_end_in_spite_of_what_was_dropped(
    bus: Bus, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.client.EVENTS_WAITING_MAX", 4)
    async with aclosing(client.stream(Request(id="r1", prompt="x"))) as events:
        first = asyncio.create_task(anext(events))
        await accepted(bus)
        await say(bus, "r1", tokens("0", 0))
        shown = [await first]
        await say(bus, "r1", *(tokens(str(n), n) for n in range(1, 12)))
        await conclude(bus, result("whole", sequence=12))
        (waiting,) = client._streams
        await eventually(lambda: waiting.filter.gap, what="the overflow")
        shown += [event async for event in events]
    sequences = [event.sequence for event in shown]
    assert sequences == sorted(sequences)
    assert shown[-1].final


@pytest.mark.parametrize("request_id", ["a.b", "", "*", "x" * 65, "a b"])
async def test_an_id_that_may_not_be_a_subject_never_leaves(
    client: Client, request_id: str
) -> None:
    with pytest.raises(BadRequest):
        await client.complete(Request(id=request_id, prompt="x"))


async def test_too_large_is_told_before_the_wire(bus: Bus, client: Client) -> None:
    with pytest.raises(BadRequest) as caught:
        await client.complete(Request(id="r1", prompt="ä" * 600_000))
    assert (caught.value.field, caught.value.limit) == ("prompt", 1024 * 1024)
    with pytest.raises(BadRequest):
        await client.complete(Request(id="r1", prompt="x", stop=["y" * 9_000_000]))
    asking = asyncio.create_task(client.complete(Request(id="r2", prompt="x")))
    assert (await accepted(bus))[0].id == "r2"
    asking.cancel()


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (Request(id="r1", prompt="\ud800"), "prompt"),
        (Request(id="r1", prompt="x", stop="\ud800"), "body"),
    ],
)
async def test_half_a_surrogate_pair_is_a_bad_request(
    client: Client, request_: Request, field: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        await client.complete(request_)
    assert caught.value.field == field


async def test_a_cancel_lands_in_its_stream(bus: Bus, client: Client) -> None:
    await client.cancel("r1", reason="test")
    stored = await bus.jetstream.last(bus.subjects.cancel_stream, bus.subjects.cancel("c", "r1"))
    assert stored is not None
    assert decode(stored.data, Cancel) == Cancel(id="r1", reason="test")


async def test_events_reach_the_client_again_after_a_restart_of_the_server(
    nats_server: NatsServer, bus: Bus, client: Client
) -> None:
    asking = asyncio.create_task(client.complete(Request(id="r1", prompt="x"), quiet_s=0.5))
    await accepted(bus)
    await say(bus, "r1", tokens("a", 0))
    await nats_server.restart()
    await eventually(lambda: bus.connected, what="reconnected")
    await conclude(bus, result("ab", sequence=2))
    assert (await asking).text == "ab"


async def test_an_outage_longer_than_the_patience_for_a_lookup_ends_no_stream(
    nats_server: NatsServer, bus: Bus, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.bus.jetstream.API_TIMEOUT_S", 0.2)
    asking = asyncio.create_task(client.complete(Request(id="r1", prompt="x"), quiet_s=0.1))
    await accepted(bus)
    nats_server.kill()
    await asyncio.sleep(1.0)
    monkeypatch.undo()
    await nats_server.start()
    await eventually(lambda: bus.connected, what="reconnected")
    await conclude(bus, result("ab", sequence=2))
    assert (await asking).text == "ab"


async def test_closing_the_client_ends_its_streams(bus: Bus) -> None:
    async with await Client.connect(bus.settings, client="c") as client:
        asking = asyncio.create_task(client.complete(Request(id="r1", prompt="x"), quiet_s=0.1))
        await accepted(bus)
    with pytest.raises(BusUnavailable):
        await asking


async def test_least_rights_are_enough(tmp_path: Path) -> None:
    shutil.copy(CONFIG_FILE, tmp_path / "base.conf")
    config = tmp_path / "rights.conf"
    config.write_text("""
        include "base.conf"
        authorization { users: [
          {user: stack, password: s}
          {user: c, password: p, permissions: {
            publish: [
              "astrolabe.request.c.default"
              "astrolabe.cancel.c.>"
              "$JS.API.DIRECT.GET.ASTROLABE_RESULTS.astrolabe.result.c.>"
            ]
            subscribe: ["astrolabe.output.c.>", "_INBOX.>"]
          }}
        ]}
    """)
    async with NatsServer(tmp_path / "nats", config=config) as server:
        host = server.url.removeprefix("nats://")
        bus = await Bus.connect(BusSettings(url=f"nats://stack:s@{host}"), name="stack")
        await ensure_topology(bus)
        settings = BusSettings(url=f"nats://c:p@{host}")
        async with await Client.connect(settings, client="c") as client:
            asking = asyncio.create_task(client.complete(Request(id="r1", prompt="x")))
            await accepted(bus)
            await say(bus, "r1", tokens("a", 0), tokens("c", 2))
            await conclude(bus, result("abc", sequence=3))
            assert (await asking).text == "abc"
            await client.cancel("r1")
            assert client._bus.last_error == ""
        await bus.close()


async def test_leaving_early_leaves_nothing_behind(bus: Bus, client: Client) -> None:
    async with aclosing(client.stream(Request(id="r1", prompt="x"))) as events:
        reading = asyncio.create_task(anext(events))
        await accepted(bus)
        await say(bus, "r1", tokens("a", 0))
        assert (await reading).text == "a"
    assert not client._streams


def test_codes_and_exceptions_belong_together() -> None:
    assert isinstance(as_error(ErrorBody(code="cancelled", message="x")), Cancelled)
    overloaded = as_error(ErrorBody(code="overloaded", message="x", retry_after_ms=5))
    assert isinstance(overloaded, Overloaded)
    assert overloaded.retry_after_ms == 5
    assert type(as_error(ErrorBody(code="of_the_future", message="x"))) is RequestError
