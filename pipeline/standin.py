"""Tagging without taggers: requests must not stop because the length model is away.

Taggers answer the ping of NATS services. When none does, twice in a row, the dispatcher drains
the taggers' own consumer with the running median as the estimate, and leaves off when one is
back. What a dead tagger held comes after `ack_wait`.
"""

import asyncio

import structlog

from pipeline.bus import Bus, WorkQueue
from pipeline.bus.topology import tagger_consumer
from pipeline.errors import BusError
from pipeline.intake import Intake
from pipeline.metrics import STANDING_IN

log = structlog.get_logger()

PING_EVERY_S = 0.5
MISSES_MAX = 2
IN_HAND_MAX = 64


class TaggerStandIn:
    """Runs `intake` on REQUESTS while no tagger answers."""

    def __init__(self, bus: Bus, intake: Intake) -> None:
        self._bus = bus
        self._intake = intake
        self._queue: WorkQueue | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def active(self) -> bool:
        return self._queue is not None

    async def watch(self) -> None:
        """Until cancelled."""
        misses = 0
        try:
            while True:
                misses = 0 if await self._tagger_answers() else misses + 1
                if misses >= MISSES_MAX and self._queue is None and self._bus.connected:
                    self._begin()
                elif misses == 0 and self._queue is not None:
                    await self._end()
                await asyncio.sleep(PING_EVERY_S)
        finally:
            await self._end()

    async def _tagger_answers(self) -> bool:
        try:
            await self._bus.request(
                self._bus.subjects.service_ping("tagger"), timeout_s=PING_EVERY_S
            )
        except BusError:
            return False
        return True

    def _begin(self) -> None:
        log.warning("tagger_missing", doing="tagging with the running median")
        STANDING_IN.inc()
        self._queue = WorkQueue(
            self._bus,
            tagger_consumer(self._bus.subjects),
            self._intake.handle,
            in_hand_max=IN_HAND_MAX,
        )
        self._running = asyncio.create_task(self._queue.run())

    async def _end(self) -> None:
        queue, running = self._queue, self._running
        self._queue = self._running = None
        if queue is None or running is None:
            return
        log.info("tagger_back", doing="leaving the tagging to it")
        await queue.stop()
        await running
