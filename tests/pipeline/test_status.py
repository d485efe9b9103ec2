"""`astrolabe status`: the data against a real server, the tables against the data."""

import io

import msgspec
import pytest
from rich.console import Console

from pipeline.bus import Bus, Delivery, Lease, WorkQueue
from pipeline.bus.service import serve
from pipeline.bus.topology import tagger_consumer
from pipeline.codec import encode
from pipeline.errors import BusMisconfigured
from pipeline.messages import EngineLimits, Instance, wall_ms
from pipeline.nats_server import NatsServer
from pipeline.status import (
    InstanceStatus,
    QueueStatus,
    Status,
    instance_status,
    ping_services,
    read_status,
    to_json,
)
from pipeline.tables import status_tables
from tests.conftest import Connect

LIMITS = EngineLimits(
    rules="vllm",
    block_size=16,
    kv_blocks=200,
    max_num_seqs=8,
    max_num_batched_tokens=512,
    max_model_len=1024,
)


def instance(**changes: object) -> Instance:
    first = Instance(
        instance="i0",
        boot="b0",
        model="org/some-model",
        engine="simulated",
        state="ready",
        limits=LIMITS,
        running=3,
        waiting=2,
        inbox_pending=1,
        kv_blocks_used=25,
        preemptions=4,
        sent_at_ms=10_000.0,
    )
    return msgspec.structs.replace(first, **changes)


def drawn(status: Status, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width)
    for table in status_tables(status):
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_lease_becomes_a_row() -> None:
    assert instance_status("i0.b0", encode(instance()), 11_500.0) == InstanceStatus(
        instance="i0",
        boot="b0",
        state="ready",
        model="org/some-model",
        engine="simulated",
        running=3,
        waiting=2,
        inbox_pending=1,
        kv_used_percent=12.5,
        preemptions=4,
        age_s=1.5,
    )


@pytest.mark.parametrize("value", [b'{"state":"dead"}', b"", b"\xff"])
def test_the_mark_of_an_ended_boot_is_shown_as_dead(value: bytes) -> None:
    row = instance_status("i0.b0", value, 0.0)
    assert (row.instance, row.boot, row.state) == ("i0", "b0", "dead")


def test_a_clock_behind_ours_makes_no_negative_age() -> None:
    assert instance_status("i0.b0", encode(instance()), 0.0).age_s == 0.0


async def test_reads_a_running_stack(bus: Bus, connect: Connect) -> None:
    await Lease(bus, "i0.b0").write(encode(instance(sent_at_ms=wall_ms())))
    await Lease(bus, "i1.b0").write(b'{"state":"dead"}')
    await bus.jetstream.store("astrolabe.dead.tagger", b"12345", message_id="1")
    services = [
        await serve(bus, "predictor", "Test.", metadata={"instance": "i1"}),
        await serve(bus, "predictor", "Test.", metadata={"instance": "i0"}),
        await serve(await connect("other", prefix="other"), "predictor", "Of another stack."),
    ]
    await tagger_consumer(bus.subjects).ensure(bus)
    await bus.jetstream.store("astrolabe.request.a.default", b"1", message_id="1")
    status = await read_status(bus)
    assert [(row.instance, row.state) for row in status.instances] == [
        ("i0", "ready"),
        ("i1", "dead"),
    ]
    assert status.instances[0].age_s < 5
    by_name = {row.stream: row for row in status.queues}
    assert len(by_name) == 7
    assert by_name["ASTROLABE_DEAD"].messages == 1
    assert by_name["ASTROLABE_DEAD"].bytes > 5
    assert by_name["ASTROLABE_REQUESTS"].subjects == 1
    (consumer,) = status.consumers
    assert (consumer.consumer, consumer.pending, consumer.waiting_pulls) == ("tagger", 1, 0)
    assert [(s.role, s.metadata["instance"]) for s in status.services] == [
        ("predictor", "i0"),
        ("predictor", "i1"),
    ]
    assert msgspec.json.decode(to_json(status), type=Status) == status
    text = drawn(status)
    for shown in ("org/some-model", "12.5", "ASTROLABE_REQUESTS", "tagger", "instance=i1"):
        assert shown in text
    for service in services:
        await service.stop()


async def test_counts_what_is_in_hand(bus: Bus) -> None:
    seen: list[Status] = []

    async def look(delivery: Delivery) -> None:
        seen.append(await read_status(bus))
        await delivery.ack()
        await queue.stop_pulling()

    queue = WorkQueue(bus, tagger_consumer(bus.subjects), look, in_hand_max=4)
    await bus.jetstream.store("astrolabe.request.a.default", b"1", message_id="1")
    await queue.run()
    await queue.stop()
    (consumer,) = seen[0].consumers
    assert (consumer.pending, consumer.ack_pending, consumer.waiting_pulls) == (0, 1, 1)


async def test_a_stack_that_never_started_is_empty_not_an_error(connect: Connect) -> None:
    status = await read_status(await connect())
    assert status.queues[0] == QueueStatus(stream="ASTROLABE_REQUESTS", found=False)
    text = drawn(status)
    assert "missing" in text
    assert text.count("none") == 3
    assert msgspec.json.decode(to_json(status))["instances"] == []


async def test_a_prefix_with_a_dash_keeps_its_services_apart(connect: Connect) -> None:
    long, short = await connect(prefix="a-predictor"), await connect(prefix="a")
    service = await serve(long, "tagger", "Test.")
    assert [found.role for found in await ping_services(long, 0.1)] == ["tagger"]
    assert await ping_services(short, 0.1) == []
    await service.stop()


async def test_jetstream_off_is_told(nats_server: NatsServer, bus: Bus, connect: Connect) -> None:
    config = nats_server.folder / "core.conf"
    config.write_text("max_payload: 8MB")
    async with NatsServer(nats_server.folder / "core", config=config) as server:
        core = await connect(url=server.url)
        with pytest.raises(BusMisconfigured, match="JetStream off"):
            await read_status(core)
        await core.close()


def test_markup_in_a_name_is_shown_as_it_is() -> None:
    row = instance_status("i0.b0", encode(instance(model="[red]x[/]")), 0.0)
    status = Status(prefix="p", instances=[row], queues=[], consumers=[], services=[])
    assert "[red]x[/]" in drawn(status)


def test_a_common_stack_fits_a_common_terminal() -> None:
    lease = encode(instance(boot="6b0e2834-34aa03", model="simulated", running=256))
    row = instance_status("i0.6b0e2834-34aa03", lease, 11_500.0)
    status = Status(prefix="p", instances=[row], queues=[], consumers=[], services=[])
    (line,) = [line for line in drawn(status, width=80).splitlines() if "i0" in line]
    for shown in ("34aa03", "ready", "simulated", "256", "12.5", "1.5"):
        assert shown in line
