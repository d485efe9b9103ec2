"""`astrolabe status`: what the bus knows of a running stack, as data; tables.py draws it.

Everything here is read, nothing is made: a stack that was never started shows empty tables.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from pipeline.bus import Bus, Message
from pipeline.bus.jetstream import ApiError
from pipeline.bus.lease import all_leases
from pipeline.codec import decode
from pipeline.errors import BadRequest, NoResponders
from pipeline.messages import Instance, wall_ms
from pipeline.subjects import Subjects

PING_WAIT_S = 0.3  # a service answers within a millisecond; a busy event loop takes longer
PING_ALL = "$SRV.PING"


class InstanceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One boot of an instance, from its lease."""

    instance: str
    boot: str
    state: str
    model: str
    engine: str
    running: int
    waiting: int
    inbox_pending: int
    kv_used_percent: float
    preemptions: int
    age_s: float
    """Since the worker wrote it, by its clock and ours."""


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One stream. `found` is False where it does not exist."""

    stream: str
    found: bool = True
    messages: int = 0
    bytes: int = 0
    subjects: int = 0


class ConsumerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One durable consumer of a work queue."""

    stream: str
    consumer: str
    pending: int
    """Stored and not delivered yet."""
    ack_pending: int
    """Delivered and not settled yet."""
    redelivered: int
    waiting_pulls: int
    """Standing demand: 0 says that nobody takes from it."""


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One component that answered a ping."""

    role: str
    id: str
    version: str
    metadata: dict[str, str]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """All of it; `--json` is this struct."""

    prefix: str
    instances: list[InstanceStatus]
    queues: list[QueueStatus]
    consumers: list[ConsumerStatus]
    services: list[ServiceStatus]


class _Pong(msgspec.Struct):
    """What a NATS service answers to a ping (ADR-32)."""

    name: str
    id: str
    version: str
    metadata: dict[str, str] | None = None


async def read_status(bus: Bus) -> Status:
    """One look at everything. Raises BusMisconfigured where JetStream is off, BusUnavailable."""
    queues = [await _queue(bus, name) for name in _streams(bus.subjects)]
    consumers = [
        _consumer(queue.stream, info)
        for queue in queues
        if queue.found
        for info in await bus.jetstream.consumers(queue.stream)
    ]
    return Status(
        prefix=bus.subjects.prefix,
        instances=await _instances(bus),
        queues=queues,
        consumers=consumers,
        services=await ping_services(bus),
    )


def to_json(status: Status) -> str:
    """For machines; indented, since people read it too."""
    return msgspec.json.format(msgspec.json.encode(status), indent=2).decode()


async def ping_services(bus: Bus, wait_s: float = PING_WAIT_S) -> list[ServiceStatus]:
    """Every component of this stack that answers a ping within `wait_s`."""
    found: list[ServiceStatus] = []

    def heard(message: Message) -> None:
        try:
            pong = msgspec.json.decode(message.data, type=_Pong)
        except msgspec.DecodeError:  # "nobody there", or somebody else's idea of a service
            return
        prefix, _, role = pong.name.rpartition("-")
        if prefix == bus.subjects.prefix:
            found.append(
                ServiceStatus(
                    role=role, id=pong.id, version=pong.version, metadata=pong.metadata or {}
                )
            )

    inbox = bus.new_inbox()
    subscription = await bus.subscribe(inbox, heard)
    try:
        await bus.publish(PING_ALL, reply=inbox)
        await asyncio.sleep(wait_s)
    finally:
        await subscription.close()
    return sorted(found, key=lambda service: (service.role, service.metadata.get("instance", "")))


def instance_status(key: str, data: bytes, now_ms: float) -> InstanceStatus:
    """A lease as a row. What is no `Instance` is the mark of a boot that somebody else ended."""
    name, _, boot = key.partition(".")
    try:
        seen = decode(data, Instance)
    except BadRequest:
        return InstanceStatus(
            instance=name,
            boot=boot,
            state="dead",
            model="",
            engine="",
            running=0,
            waiting=0,
            inbox_pending=0,
            kv_used_percent=0.0,
            preemptions=0,
            age_s=0.0,
        )
    return InstanceStatus(
        instance=seen.instance,
        boot=seen.boot,
        state=seen.state,
        model=seen.model,
        engine=seen.engine,
        running=seen.running,
        waiting=seen.waiting,
        inbox_pending=seen.inbox_pending,
        kv_used_percent=round(100 * seen.kv_blocks_used / max(1, seen.limits.kv_blocks), 1),
        preemptions=seen.preemptions,
        age_s=round(max(0.0, now_ms - seen.sent_at_ms) / 1000, 1),
    )


def _streams(subjects: Subjects) -> list[str]:
    return [
        subjects.requests_stream,
        subjects.tagged_stream,
        subjects.inbox_stream,
        subjects.results_stream,
        subjects.cancel_stream,
        subjects.history_stream,
        subjects.dead_stream,
    ]


async def _instances(bus: Bus) -> list[InstanceStatus]:
    try:
        leases = await all_leases(bus)
    except NoResponders:  # no bucket
        return []
    now_ms = wall_ms()
    return [instance_status(key, data, now_ms) for key, data in sorted(leases.items())]


async def _queue(bus: Bus, stream: str) -> QueueStatus:
    try:
        state = (await bus.jetstream.stream_info(stream))["state"]
    except ApiError:
        return QueueStatus(stream=stream, found=False)
    return QueueStatus(
        stream=stream,
        messages=state["messages"],
        bytes=state["bytes"],
        subjects=state.get("num_subjects", 0),
    )


def _consumer(stream: str, info: Mapping[str, Any]) -> ConsumerStatus:
    return ConsumerStatus(
        stream=stream,
        consumer=info["name"],
        pending=info["num_pending"],
        ack_pending=info["num_ack_pending"],
        redelivered=info["num_redelivered"],
        waiting_pulls=info["num_waiting"],
    )
