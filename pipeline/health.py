"""Whether one component works, asked over the bus as its users would ask it.

The health check of a container: it says nothing of the component's peers, so that one that is away
does not make the others look broken. It reaches the component's event loop, not only its process:
what hangs does not answer.
"""

import asyncio
import socket
from typing import Literal, assert_never, get_args

from pipeline.bus import Bus, Message
from pipeline.codec import decode
from pipeline.errors import BadRequest, BusError, UsageError
from pipeline.messages import Instance
from pipeline.readiness import answers_probe
from pipeline.status import ping_services

Role = Literal["nats", "tagger", "dispatcher", "worker", "predictor"]
ROLES: tuple[Role, ...] = get_args(Role)

HEARTBEAT_WAIT_S = 2.5  # two of them and some: one may have gone while we subscribed
PING_WAIT_S = 0.5


async def what_is_wrong(bus: Bus, role: Role, instance: str | None = None) -> str | None:
    """None where the component works, else why not. Takes three seconds at most.

    `nats` is asked for a stream of the stack; taggers and dispatchers are found by the name of
    this host, which they tell as services; a worker by its heartbeat and a predictor by its answer
    to a probe, both by `instance`. Raises UsageError where that is missing.
    """
    match role:
        case "nats":
            return await _jetstream(bus)
        case "tagger" | "dispatcher":
            return await _service(bus, role)
        case "worker":
            return await _worker(bus, _named(instance))
        case "predictor":
            if await answers_probe(bus, _named(instance)):
                return None
            return f"the predictor of {instance} does not answer a probe"
        case _:
            assert_never(role)


def _named(instance: str | None) -> str:
    if instance is None:
        raise UsageError("--instance: a worker and a predictor are asked by their instance's name")
    return instance


async def _jetstream(bus: Bus) -> str | None:
    """JetStream has recovered its store once it answers; before, nobody is there to."""
    try:
        await bus.jetstream.api("INFO")
    except BusError as error:
        return f"JetStream does not answer: {error}"
    return None


async def _service(bus: Bus, role: str) -> str | None:
    host = socket.gethostname()
    found = await ping_services(bus, PING_WAIT_S)
    if any(service.role == role and service.metadata.get("host") == host for service in found):
        return None
    return f"no {role} on {host} answers a ping within {PING_WAIT_S:g} s"


async def _worker(bus: Bus, instance: str) -> str | None:
    """A draining worker works: it finishes what it has."""
    heard: asyncio.Future[Instance] = asyncio.get_running_loop().create_future()

    def on_heartbeat(message: Message) -> None:
        try:
            seen = decode(message.data, Instance)
        except BadRequest:
            return
        if not heard.done():
            heard.set_result(seen)

    subscription = await bus.subscribe(bus.subjects.heartbeat(instance), on_heartbeat)
    try:
        async with asyncio.timeout(HEARTBEAT_WAIT_S):
            seen = await heard
    except TimeoutError:
        return f"no heartbeat of {instance} within {HEARTBEAT_WAIT_S:g} s"
    finally:
        await subscription.close()
    return f"{instance} says that it is dead" if seen.state == "dead" else None
