"""One request's events on the bus: the first token at once, later ones together.

A message per token would make the bus the bottleneck at a few hundred streams; a message every
30 ms is below what a reader notices. Nothing is published while the worker may not speak: tokens
wait, and go out together when it may.
"""

import asyncio
from collections.abc import Mapping
from typing import Literal

import structlog

from pipeline.bus import Bus
from pipeline.codec import encode
from pipeline.errors import BusError
from pipeline.messages import OutputEvent
from workers.lease import Hold

log = structlog.get_logger()

COALESCE_S = 0.03


class Output:
    """Publishes `tokens` events of one attempt, numbered without gaps."""

    def __init__(
        self,
        bus: Bus,
        hold: Hold,
        *,
        client: str,
        request: str,
        attempt: int,
        instance: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._bus = bus
        self._hold = hold
        self._subject = bus.subjects.output(client, request)
        self._request = request
        self._attempt = attempt
        self._instance = instance
        self._headers = headers
        self._text: list[str] = []
        self._tokens = 0
        self._last_sent_at = 0.0
        self._timer: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()
        self.sequence = 0
        """Number of the next event."""

    async def restart(self) -> None:
        """Tell the client to discard what an earlier attempt sent."""
        await self._publish("restart", "", 0)

    async def add(self, text: str, tokens: int) -> None:
        """Publish now, if the last event is long enough ago; else soon, with what else comes."""
        self._text.append(text)
        self._tokens += tokens
        now = asyncio.get_running_loop().time()
        due_in_s = self._last_sent_at + COALESCE_S - now
        if due_in_s <= 0:
            await self._flush()
        elif self._timer is None:
            self._timer = asyncio.create_task(self._flush_later(due_in_s))

    async def finish(self) -> None:
        """Publish what waits; the final event comes after it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._flush()
        async with self._sending:  # a flush that the timer began is out, too
            pass

    async def _flush_later(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        self._timer = None
        await self._flush()

    async def _flush(self) -> None:
        if not self._text:
            return
        text, tokens = "".join(self._text), self._tokens
        self._text.clear()
        self._tokens = 0
        self._last_sent_at = asyncio.get_running_loop().time()
        await self._publish("tokens", text, tokens)

    async def _publish(self, event: Literal["tokens", "restart"], text: str, tokens: int) -> None:
        async with self._sending:  # events leave in the order of their numbers
            if not await self._hold.speak():
                return
            message = OutputEvent(
                event=event,
                id=self._request,
                attempt=self._attempt,
                sequence=self.sequence,
                text=text,
                tokens=tokens,
                instance=self._instance,
            )
            self.sequence += 1
            try:
                await self._bus.publish(self._subject, encode(message), headers=self._headers)
            except BusError as error:
                # The number is spent: the client sees the gap and takes the stored result.
                log.warning("event_lost", request=self._request, error=str(error))
