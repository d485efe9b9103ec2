"""The floor: a pipeline that decides nothing. Same hops, same bus code, one process a role.

    request → (relay) → tagged → (two gathered probes) → inbox → (sink notes the time)

What the real pipeline takes beyond this is what it does, not what the bus costs.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable

import uvloop

from pipeline.bus import Bus, BusSettings, Delivery, Message, WorkQueue
from pipeline.bus.topology import (
    ConsumerSpec,
    dispatcher_consumer,
    ensure_topology,
    inbox_consumer,
    tagger_consumer,
)
from pipeline.messages import wall_ms
from pipeline.subjects import last_tokens

PREFIX = "floor"
IN_HAND_MAX = 64

Handle = Callable[[Delivery], Awaitable[None]]


async def relay(bus: Bus) -> None:
    """As the tagger, without a model."""

    async def handle(delivery: Delivery) -> None:
        client, model = last_tokens(delivery.subject, 2)
        await bus.jetstream.store(
            bus.subjects.tagged(model, client),
            delivery.data,
            message_id=f"{delivery.headers['Nats-Msg-Id']}.1",
        )
        await delivery.ack()

    await _drain(bus, tagger_consumer(bus.subjects), handle)


async def prober(bus: Bus) -> None:
    """As the dispatcher, with two fixed candidates and no choice."""

    async def handle(delivery: Delivery) -> None:
        await asyncio.gather(
            *(bus.request(bus.subjects.predict(name), b"{}", timeout_s=1) for name in ("a", "b"))
        )
        await bus.jetstream.store(
            bus.subjects.inbox("a", "boot"),
            delivery.data,
            message_id=delivery.headers["Nats-Msg-Id"],
        )
        await delivery.ack()

    await _drain(bus, dispatcher_consumer(bus.subjects), handle)


async def echo(bus: Bus) -> None:
    """As both predictors: an answer without a thought."""
    replies: set[asyncio.Task[None]] = set()

    def answer(message: Message) -> None:
        task = asyncio.create_task(bus.publish(message.reply, b"{}"))
        replies.add(task)
        task.add_done_callback(replies.discard)

    for name in ("a", "b"):
        await bus.subscribe(bus.subjects.predict(name), answer)
    await asyncio.Event().wait()


async def sink(bus: Bus) -> None:
    """As the worker, up to the point where an engine would take the request."""

    async def handle(delivery: Delivery) -> None:
        taken_at_ms = wall_ms()
        body = b"%s %r" % (delivery.data, taken_at_ms)
        await bus.publish(bus.subjects.output("floor", "all"), body)
        await delivery.ack()

    await _drain(bus, inbox_consumer(bus.subjects, "a", "boot"), handle)


ROLES = {"relay": relay, "prober": prober, "echo": echo, "sink": sink}


async def _drain(bus: Bus, consumer: ConsumerSpec, handle: Handle) -> None:
    await WorkQueue(bus, consumer, handle, in_hand_max=IN_HAND_MAX).run()


async def _main(role: str, url: str) -> None:
    bus = await Bus.connect(BusSettings(url=url, prefix=PREFIX), name=f"floor-{role}")
    await ensure_topology(bus)
    await ROLES[role](bus)


if __name__ == "__main__":
    uvloop.run(_main(sys.argv[1], sys.argv[2]))
