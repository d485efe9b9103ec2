"""One request through our own pipeline, watched as a client of the bus watches it."""

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Literal, Self

from evaluation.rivals.http_client import REQUEST_S
from evaluation.rivals.seen import Ending, Seen
from evaluation.rivals.workload import Arrival
from pipeline.bus import BusSettings
from pipeline.client import Client
from pipeline.errors import BusError, DeadlineExceeded, RequestError
from pipeline.messages import OutputEvent, Request
from workers.simulated_answer import NATURAL_LENGTH_FIELD

Lengths = Literal["told", "hidden"]


class BusClient:
    """Sends under one client name; ids are made its own, since a stack answers an id once."""

    def __init__(self, client: Client, lengths: Lengths) -> None:
        self.client = client
        self._lengths = lengths
        self._run = secrets.token_hex(3)

    @classmethod
    @asynccontextmanager
    async def connect(cls, settings: BusSettings, lengths: Lengths) -> AsyncGenerator[Self, None]:
        async with await Client.connect(settings, client="rivals") as client:
            yield cls(client, lengths)

    def request(self, arrival: Arrival, within_s: float = REQUEST_S) -> Request:
        """The arrival as a request of ours."""
        told = self._lengths == "told"
        return Request(
            id=f"{self._run}-{arrival.id}",
            messages=list(arrival.messages),
            max_tokens=arrival.answer_tokens if told else None,
            ignore_eos=told,
            metadata=None if told else {NATURAL_LENGTH_FIELD: str(arrival.answer_tokens)},
            deadline_ms=round(within_s * 1000),
        )

    async def send(self, arrival: Arrival, due_at: float, *, within_s: float = REQUEST_S) -> Seen:
        """Send and follow to the end, however it ends; of an answer there is always a `Seen`."""

        def since_ms() -> float:
            return (time.monotonic() - due_at) * 1000

        seen = Seen(arrival.id, "cut", send_lag_ms=since_ms())
        try:
            async with aclosing(self.client.stream(self.request(arrival, within_s))) as events:
                async for event in events:
                    seen = _after(seen, event, since_ms())
        except DeadlineExceeded as error:
            return replace(seen, ending="late", e2e_ms=since_ms(), detail=error.message)
        except RequestError as error:
            return replace(
                seen, ending="refused", e2e_ms=since_ms(), detail=f"{error.code}: {error.message}"
            )
        except BusError as error:
            return replace(seen, ending="unreachable", e2e_ms=since_ms(), detail=str(error))
        return seen


def _after(seen: Seen, event: OutputEvent, since_ms: float) -> Seen:
    """What the client knows once this event has come."""
    if event.event == "restart":
        return replace(seen, ttft_ms=None, tokens=0, restarts=seen.restarts + 1)
    if event.event == "tokens":
        first_ms = since_ms if seen.ttft_ms is None else seen.ttft_ms
        seen = replace(
            seen, ttft_ms=first_ms, tokens=seen.tokens + event.tokens, instance=event.instance
        )
    if not event.final:
        return seen
    if event.error is not None:
        ending: Ending = "late" if event.error.code == DeadlineExceeded.code else "error_event"
        detail = f"{event.error.code}: {event.error.message}"
        return replace(seen, ending=ending, e2e_ms=since_ms, detail=detail)
    tokens = event.usage.completion_tokens if event.usage else seen.tokens
    return replace(seen, ending="whole", e2e_ms=since_ms, tokens=tokens, instance=event.instance)
