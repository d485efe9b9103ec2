"""Streams and consumers as the server really makes them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pipeline.bus import Bus, BusSettings, Message
from pipeline.bus.topology import (
    ConsumerSpec,
    dispatcher_consumer,
    ensure_topology,
    inbox_consumer,
    stream_configs,
    tagger_consumer,
)
from pipeline.errors import BusMisconfigured, QueueFull
from pipeline.nats_server import NatsServer
from pipeline.subjects import Header, Subjects
from tests.conftest import Connect
from tests.waiting import eventually

CONFIGS = stream_configs(Subjects())
NAMES = [str(config["name"]) for config in CONFIGS]


async def config_of(bus: Bus, stream: str) -> dict[str, Any]:
    return dict((await bus.jetstream.stream_info(stream))["config"])


@pytest.mark.parametrize("config", CONFIGS, ids=NAMES)
def test_failure_12_every_stream_is_bounded(config: dict[str, Any]) -> None:
    assert config["max_bytes"] > 0
    assert config["max_msgs"] > 0


@pytest.mark.parametrize(
    "config", [c for c in CONFIGS if c.get("retention") == "workqueue"], ids=lambda c: c["name"]
)
def test_a_work_queue_refuses_and_never_forgets(config: dict[str, Any]) -> None:
    assert config["discard"] == "new"
    assert config["discard_new_per_subject"]
    assert not config.get("max_age")
    assert not config.get("allow_msg_ttl")


async def test_ensures_what_is_asked_and_only_once(bus: Bus) -> None:
    before = [await config_of(bus, name) for name in NAMES]
    await ensure_topology(bus)
    assert [await config_of(bus, name) for name in NAMES] == before
    for wanted, made in zip(CONFIGS, before, strict=True):
        for key, value in wanted.items():
            made_value = made[key]
            if key == "republish":
                assert isinstance(value, dict)
                made_value = {k: made_value[k] for k in value}
            assert made_value == value, (wanted["name"], key)


async def test_five_may_start_at_once(connect: Connect) -> None:
    buses = [await connect(f"c{number}") for number in range(5)]
    await asyncio.gather(*(ensure_topology(bus) for bus in buses))
    listed = await buses[0].jetstream.api("STREAM.NAMES", {"offset": 0})
    assert sorted(listed["streams"]) == sorted(NAMES)


async def test_ensuring_again_keeps_the_messages(bus: Bus) -> None:
    await bus.jetstream.store("astrolabe.request.a.default", b"1", message_id="1")
    await ensure_topology(bus)
    info = await bus.jetstream.stream_info(bus.subjects.requests_stream)
    assert info["state"]["messages"] == 1


async def test_an_older_versions_limits_are_updated(connect: Connect) -> None:
    bus = await connect()
    older = {**CONFIGS[2], "storage": "file", "max_msgs_per_subject": 7, "max_bytes": 2**20}
    del older["republish"]
    await bus.jetstream.api(f"STREAM.CREATE.{older['name']}", older)
    await ensure_topology(bus)
    made = await config_of(bus, str(older["name"]))
    assert made["max_msgs_per_subject"] == CONFIGS[2]["max_msgs_per_subject"]
    assert made["max_bytes"] == CONFIGS[2]["max_bytes"]
    assert made["republish"]["headers_only"]


async def test_what_cannot_be_updated_is_named_in_one_line(connect: Connect) -> None:
    bus = await connect()
    name = CONFIGS[0]["name"]
    other = {"name": name, "subjects": CONFIGS[0]["subjects"], "retention": "limits"}
    await bus.jetstream.api(f"STREAM.CREATE.{name}", {**other, "storage": "memory"})
    with pytest.raises(BusMisconfigured, match=f"stream {name}") as refused:
        await ensure_topology(bus)
    assert "\n" not in str(refused.value)


async def test_two_stacks_share_a_server(bus: Bus, connect: Connect) -> None:
    """Streams reserve their bytes: the configuration's max_file_store has room for both."""
    second = await connect("second", prefix="replay")
    await ensure_topology(second)
    await bus.jetstream.store("astrolabe.dead.test", b"1", message_id="1")
    assert await second.jetstream.read(second.subjects.dead_stream, "replay.dead.*") == []


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ("max_payload: 8MB", "JetStream off"),
        ("jetstream {max_file_store: 32GB}", "max_payload"),
        ("max_payload: 8MB\njetstream {max_file_store: 1GB}", "max_file_store"),
    ],
)
async def test_failure_13_a_server_that_cannot_carry_it_is_told_in_one_line(
    tmp_path: Path, config: str, complaint: str
) -> None:
    file = tmp_path / "poor.conf"
    file.write_text(config)
    async with NatsServer(tmp_path / "poor", config=file) as server:
        bus = await Bus.connect(BusSettings(url=server.url), name="test")
        try:
            with pytest.raises(BusMisconfigured, match=complaint) as refused:
                await ensure_topology(bus)
        finally:
            await bus.close()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "spec",
    [
        tagger_consumer(Subjects()),
        dispatcher_consumer(Subjects()),
        inbox_consumer(Subjects(), "i0", "b0"),
    ],
    ids=lambda spec: spec.name,
)
async def test_consumers_are_made_once_and_never_park(bus: Bus, spec: ConsumerSpec) -> None:
    await asyncio.gather(*(spec.ensure(bus) for _ in range(5)))
    (consumer,) = await bus.jetstream.consumers(spec.stream)
    assert consumer["config"]["max_deliver"] == -1
    assert consumer["config"]["ack_wait"] == spec.ack_wait_s * 1e9
    assert "backoff" not in consumer["config"]


async def test_republishes_of_an_inbox_what_it_stored_and_no_prompt(bus: Bus) -> None:
    heard: list[Message] = []
    await bus.subscribe(bus.subjects.all_queued, heard.append)
    js, inbox = bus.jetstream, bus.subjects.inbox("i0", "b0")
    stream = bus.subjects.inbox_stream
    narrow = {**await config_of(bus, stream), "max_msgs_per_subject": 2}
    await js.api(f"STREAM.UPDATE.{stream}", narrow)
    for identity in ("m1", "m1", "m2"):
        await js.store(inbox, b"prompt", message_id=identity, headers={Header.REQUEST: identity})
    with pytest.raises(QueueFull):
        await js.store(inbox, b"prompt", message_id="m3", headers={Header.REQUEST: "m3"})
    await eventually(lambda: len(heard) == 2)
    await asyncio.sleep(0.1)
    assert [message.headers[Header.REQUEST] for message in heard] == ["m1", "m2"]
    assert {message.subject for message in heard} == {"astrolabe.queued.i0"}
    assert {message.data for message in heard} == {b""}


async def test_republishes_of_a_result_its_headers_once(bus: Bus) -> None:
    heard: list[Message] = []
    await bus.subscribe(bus.subjects.all_finished, heard.append)
    subject = bus.subjects.result("alice", "r1")
    await bus.jetstream.store(subject, b"text", expect_last=0, headers={Header.STATUS: "done"})
    with pytest.raises(Exception, match="wrong last sequence"):
        await bus.jetstream.store(subject, b"text", expect_last=0, headers={Header.STATUS: "error"})
    await eventually(lambda: len(heard) == 1)
    await asyncio.sleep(0.1)
    (message,) = heard
    assert message.subject == "astrolabe.finished.alice.r1"
    assert message.headers[Header.STATUS] == "done"
    assert message.data == b""
