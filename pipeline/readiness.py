"""Whether a stack is ready, seen from the bus as a request would see it.

A worker is ready when its heartbeat says so, a predictor when it answers a probe (it has the
instance's state by then), taggers and dispatchers when they answer as NATS services.
"""

import asyncio
from collections import Counter

from pipeline.bus import Bus, Message
from pipeline.codec import decode, encode
from pipeline.errors import BadRequest, BusError
from pipeline.messages import Instance, LengthEstimate, Probe
from pipeline.status import ping_services

PROBE_TIMEOUT_S = 0.5
PING_WAIT_S = 0.1


class Readiness:
    """What has shown itself so far, out of what is expected."""

    def __init__(self, bus: Bus, instances: list[str], services: dict[str, int]) -> None:
        self._bus = bus
        self._services = services
        self._workers_missing = set(instances)
        self._predictors_missing = set(instances)

    async def start(self) -> None:
        """Begin to listen; lasts as long as the connection."""
        await self._bus.subscribe(self._bus.subjects.all_heartbeats, self._on_heartbeat)

    async def missing(self) -> list[str]:
        """Names of what is not ready yet. Takes a fraction of a second."""
        asked = list(self._predictors_missing)
        answered = await asyncio.gather(*(answers_probe(self._bus, name) for name in asked))
        self._predictors_missing -= {name for name, yes in zip(asked, answered, strict=True) if yes}
        running = Counter(service.role for service in await ping_services(self._bus, PING_WAIT_S))
        return [
            *(role for role, count in self._services.items() if running[role] < count),
            *(f"worker-{name}" for name in sorted(self._workers_missing)),
            *(f"predictor-{name}" for name in sorted(self._predictors_missing)),
        ]

    def _on_heartbeat(self, message: Message) -> None:
        try:
            seen = decode(message.data, Instance)
        except BadRequest:
            return
        if seen.state == "ready":
            self._workers_missing.discard(seen.instance)


async def answers_probe(bus: Bus, instance: str) -> bool:
    """Whether an instance's predictor answers; by then it has the instance's state."""
    probe = Probe(
        key="stack.readiness",
        prompt_tokens=1,
        max_tokens=1,
        estimate=LengthEstimate(p10=1, p50=1, p90=1, source="readiness"),
    )
    try:
        await bus.request(bus.subjects.predict(instance), encode(probe), timeout_s=PROBE_TIMEOUT_S)
    except BusError:
        return False
    return True
