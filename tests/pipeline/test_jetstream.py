"""Storing and reading: once, however often it is tried, and whatever the server does meanwhile."""

import asyncio
from pathlib import Path

import pytest

from pipeline.bus import Bus
from pipeline.bus.jetstream import ApiError, StoredMessage
from pipeline.bus.topology import INBOX_PER_INSTANCE_MAX
from pipeline.errors import BusUnavailable, NoResponders, QueueFull, SequenceConflict
from pipeline.nats_server import NatsServer
from tests.waiting import eventually

SUBJECT = "astrolabe.request.alice.default"


async def messages_in(bus: Bus, stream: str) -> int:
    return int((await bus.jetstream.stream_info(stream))["state"]["messages"])


def bodies(messages: list[StoredMessage]) -> list[bytes]:
    return [message.data for message in messages]


async def test_a_retry_must_be_safe(bus: Bus) -> None:
    with pytest.raises(ValueError, match="message_id or expect_last"):
        await bus.jetstream.store(SUBJECT, b"1")


async def test_a_known_id_is_a_duplicate(bus: Bus) -> None:
    first = await bus.jetstream.store(SUBJECT, b"1", message_id="alice.r1")
    again = await bus.jetstream.store(SUBJECT, b"2", message_id="alice.r1")
    assert (first.duplicate, again.duplicate) == (False, True)
    assert first.sequence == again.sequence
    assert await messages_in(bus, bus.subjects.requests_stream) == 1


async def test_failure_6_store_waits_for_a_killed_server_and_stores_once(
    nats_server: NatsServer, bus: Bus
) -> None:
    nats_server.kill()
    storing = asyncio.create_task(bus.jetstream.store(SUBJECT, b"1", message_id="r1"))
    await asyncio.sleep(0.3)
    await nats_server.restart()
    assert not (await storing).duplicate
    assert await messages_in(bus, bus.subjects.requests_stream) == 1


async def test_failure_7_store_whose_acknowledgement_came_too_late_stores_once(
    nats_server: NatsServer, bus: Bus
) -> None:
    nats_server.pause()
    storing = asyncio.create_task(bus.jetstream.store(SUBJECT, b"1", message_id="r1"))
    await asyncio.sleep(2.3)  # the first try is over, its message still on its way
    nats_server.resume()
    assert not (await storing).duplicate
    assert await messages_in(bus, bus.subjects.requests_stream) == 1


async def test_failure_13_store_waits_for_jetstream(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    config = tmp_path / "core.conf"
    config.write_text("max_payload: 8MB")
    await nats_server.stop()
    bare = NatsServer(tmp_path / "bare", port=nats_server.port, config=config)
    async with bare:
        await eventually(lambda: bus.connected)
        with pytest.raises(BusUnavailable, match=r"not acknowledged within 0\.3 s"):
            await bus.jetstream.store(SUBJECT, b"1", message_id="r1", timeout_s=0.3)
        storing = asyncio.create_task(bus.jetstream.store(SUBJECT, b"1", message_id="r1"))
        await asyncio.sleep(0.3)
    await nats_server.start()
    await storing
    assert await messages_in(bus, bus.subjects.requests_stream) == 1


async def test_a_full_inbox_refuses_and_its_neighbour_does_not(bus: Bus) -> None:
    full, other = bus.subjects.inbox("i0", "b0"), bus.subjects.inbox("i1", "b0")
    await asyncio.gather(
        *(
            bus.jetstream.store(full, b"x", message_id=f"m{number}")
            for number in range(INBOX_PER_INSTANCE_MAX)
        )
    )
    with pytest.raises(QueueFull, match=full):
        await bus.jetstream.store(full, b"x", message_id="one more")
    await bus.jetstream.store(other, b"x", message_id="m0-other")
    counts = await bus.jetstream.subject_counts(bus.subjects.inbox_stream, bus.subjects.all_inboxes)
    assert counts == {full: INBOX_PER_INSTANCE_MAX, other: 1}


async def test_the_second_writer_is_refused(bus: Bus) -> None:
    subject = bus.subjects.result("alice", "r1")
    first = await bus.jetstream.store(subject, b"1", expect_last=0)
    with pytest.raises(SequenceConflict):
        await bus.jetstream.store(subject, b"2", expect_last=0)
    second = await bus.jetstream.store(subject, b"2", expect_last=first.sequence)
    assert second.sequence > first.sequence


async def test_an_unknown_subject_is_unavailable_not_lost_in_silence(bus: Bus) -> None:
    with pytest.raises(BusUnavailable, match="nobody listens"):
        await bus.jetstream.store("astrolabe.unheard", b"1", message_id="1", timeout_s=0.3)


async def test_reads_back(bus: Bus) -> None:
    js, stream = bus.jetstream, bus.subjects.requests_stream
    for number, client in enumerate(["alice", "bob", "alice"]):
        await js.store(
            f"astrolabe.request.{client}.default",
            b"%d" % number,
            message_id=str(number),
            headers={"Astrolabe-Attempt": "1"},
        )
    last = await js.last(stream, SUBJECT)
    assert last is not None
    assert (last.data, last.sequence, last.subject) == (b"2", 3, SUBJECT)
    assert last.headers["Astrolabe-Attempt"] == "1"
    assert await js.last(stream, "astrolabe.request.carol.default") is None
    assert bodies(await js.read(stream, "astrolabe.request.*.*")) == [b"0", b"1", b"2"]
    assert bodies(await js.read(stream, "astrolabe.request.*.*", start=2)) == [b"1", b"2"]
    assert bodies(await js.read(stream, "astrolabe.request.*.*", limit=2)) == [b"0", b"1"]
    assert bodies(await js.read(stream, "astrolabe.request.bob.*")) == [b"1"]
    assert await js.read(stream, "astrolabe.request.carol.*") == []
    assert bodies(await js.last_of_each(stream, "astrolabe.request.*.*")) == [b"1", b"2"]
    assert await js.last_of_each(stream, "astrolabe.request.carol.*") == []
    assert await js.subject_counts(stream, "astrolabe.request.*.*") == {
        SUBJECT: 2,
        "astrolabe.request.bob.default": 1,
    }


async def test_reads_thousands_in_pages(bus: Bus) -> None:
    js, stream = bus.jetstream, bus.subjects.requests_stream
    await asyncio.gather(
        *(js.store(SUBJECT, b"%d" % number, message_id=str(number)) for number in range(1500))
    )
    first = await js.read(stream, SUBJECT)
    rest = await js.read(stream, SUBJECT, start=first[-1].sequence + 1)
    assert (len(first), len(rest)) == (1000, 500)


async def test_a_header_called_status_is_not_taken_for_the_servers_own(bus: Bus) -> None:
    js, subject = bus.jetstream, bus.subjects.result("alice", "r1")
    await js.store(subject, b"1", expect_last=0, headers={"Status": "404"})
    stream = bus.subjects.results_stream
    last = await js.last(stream, subject)
    assert last is not None
    assert last.data == b"1"
    assert bodies(await js.read(stream, subject)) == [b"1"]


async def test_deletes_once(bus: Bus) -> None:
    stored = await bus.jetstream.store(SUBJECT, b"1", message_id="1")
    stream = bus.subjects.requests_stream
    assert await bus.jetstream.delete(stream, stored.sequence)
    assert not await bus.jetstream.delete(stream, stored.sequence)
    assert not await bus.jetstream.delete(stream, 99)
    assert await messages_in(bus, stream) == 0


async def test_what_is_not_there_is_told(bus: Bus) -> None:
    with pytest.raises(NoResponders, match="NONE"):
        await bus.jetstream.last("NONE", "x")
    with pytest.raises(NoResponders, match="NONE"):
        await bus.jetstream.read("NONE", "x")
    with pytest.raises(ApiError, match="stream not found"):
        await bus.jetstream.stream_info("NONE")
    assert await bus.jetstream.consumer_info("NONE", "none") is None
    assert await bus.jetstream.consumer_info(bus.subjects.inbox_stream, "none") is None
    await bus.jetstream.delete_consumer(bus.subjects.inbox_stream, "none")
