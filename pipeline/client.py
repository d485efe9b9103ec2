"""The Python client. Any NATS client can do the same: docs/protocol.md.

It needs the least rights: publish its requests and cancels, subscribe to its own output, and read
its own results by direct get.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import msgspec
import structlog

from pipeline import errors
from pipeline.bus import Bus, BusSettings, Message
from pipeline.bus.connection import CONNECT_TIMEOUT_S
from pipeline.bus.topology import HOP_ROOM_BYTES
from pipeline.codec import decode, encode
from pipeline.conclusion import final_event, find_result
from pipeline.errors import (
    BadRequest,
    BusError,
    DeadlineExceeded,
    DuplicateId,
    EngineFailed,
    Overloaded,
    QueueFull,
    RequestError,
)
from pipeline.events import EventFilter
from pipeline.messages import (
    DEADLINE_MS_DEFAULT,
    PROMPT_BYTES_MAX,
    Cancel,
    ErrorBody,
    OutputEvent,
    Request,
    Result,
    Usage,
    prompt_text,
    wall_ms,
)
from pipeline.subjects import DEFAULT_CLIENT, DEFAULT_MODEL, check_token, model_slug

log = structlog.get_logger()

QUIET_S = 2.0
"""After so long without an event the stored result is looked for."""
DEADLINE_SLACK_S = 10.0
"""The stack answers a late request itself; beyond this nobody did."""
EVENTS_WAITING_MAX = 4_096
RETRY_AFTER_MS = 1_000

_ERRORS: dict[str, type[RequestError]] = {
    error.code: error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, RequestError)
}


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer."""

    text: str
    finish_reason: str | None
    usage: Usage | None
    attempt: int
    instance: str | None
    result: Result | None = field(default=None, compare=False, repr=False)
    """The stored result, where the text had to come from it. The answer is the same either way."""


class Client:
    """Sends requests under one client name. `async with await Client.connect(…)` closes it."""

    def __init__(self, bus: Bus, client: str) -> None:
        self._bus = bus
        self._client = client
        self._streams: set[_Stream] = set()
        bus.on_reconnect(self._look_up_all)

    @classmethod
    async def connect(
        cls,
        settings: BusSettings,
        *,
        client: str = DEFAULT_CLIENT,
        timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> "Client":
        """Raises BusUnavailable; BadRequest for a name that may not be part of a subject."""
        check_token(client, "client")
        bus = await Bus.connect(settings, name=f"client-{client}", timeout_s=timeout_s)
        return cls(bus, client)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._bus.close()

    async def stream(
        self, request: Request, *, quiet_s: float = QUIET_S
    ) -> AsyncGenerator[OutputEvent, None]:
        """Send the request and yield its events in order; the last one is final.

        A `restart` event says to discard the text so far. When events were lost on the way (a gap
        in `sequence`), an attempt began with `resume`, or the final event is of another attempt
        than those shown, take the text from `result()`; `complete` does. Leaving early stops
        listening; it cancels nothing.

        Raises BadRequest (before anything is sent), Overloaded, DuplicateId, DeadlineExceeded,
        BusUnavailable. An `error` event is yielded, not raised.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + (
            (request.deadline_ms or DEADLINE_MS_DEFAULT) / 1000 + DEADLINE_SLACK_S
        )
        body = checked_body(request, self._bus.max_payload)
        events = await self._open(request)
        try:
            if await self._publish(request, body, give_up_at):
                events.look_up()
            while True:
                # No timeout around `yield`: it would cancel whatever the reader does just then.
                event = await self._next(request.id, events, quiet_s, give_up_at)
                yield event
                if event.final:
                    return
        finally:
            self._streams.discard(events)
            await events.close()

    async def complete(self, request: Request, *, quiet_s: float = QUIET_S) -> Completion:
        """Send the request and wait for the whole answer. Raises its RequestError if it fails."""
        text: list[str] = []
        shown = EventFilter()
        whole = True
        resumed = False
        last: OutputEvent | None = None
        async with aclosing(self.stream(request, quiet_s=quiet_s)) as events:
            async for event in events:
                if event.attempt != shown.attempt:
                    text.clear()
                    resumed = False
                # What a resume keeps is counted in tokens, which cannot be cut out of a text.
                resumed |= event.event == "resume"
                whole = shown.take(event) and not shown.gap and not resumed
                text.append(event.text)
                last = event
        if last is None:
            raise EngineFailed(f"the stream of {request.id} ended without an event")
        if last.error is not None:
            raise as_error(last.error)
        result = None
        if not whole:
            result = await self.result(request.id)
            if result is None:
                raise EngineFailed(f"events of {request.id} were lost, and so is its result")
            text = [result.text]
        return Completion(
            "".join(text), last.finish_reason, last.usage, last.attempt, last.instance, result
        )

    async def result(self, request_id: str) -> Result | None:
        """The stored result, also long after; None where there is none (yet, or any more)."""
        return await find_result(self._bus, self._client, check_token(request_id, "id"))

    async def cancel(self, request_id: str, *, reason: str = "client") -> None:
        """Stop a request wherever it is. Its stream ends with the error `cancelled`."""
        check_token(request_id, "id")
        await self._bus.jetstream.store(
            self._bus.subjects.cancel(self._client, request_id),
            encode(Cancel(id=request_id, reason=reason)),
            message_id=f"cancel.{self._client}.{request_id}",
        )

    async def _open(self, request: Request) -> "_Stream":
        """Listen before anything is sent: the first event may come at once."""
        subject = self._bus.subjects.output(self._client, request.id)
        events = _Stream()
        await events.open(self._bus, subject)
        self._streams.add(events)
        return events

    async def _publish(self, request: Request, body: bytes, give_up_at: float) -> bool:
        """True where the id is a finished request's: its result is the answer."""
        model = DEFAULT_MODEL if request.model is None else model_slug(request.model)
        try:
            async with asyncio.timeout_at(give_up_at):
                stored = await self._bus.jetstream.store(
                    self._bus.subjects.request(self._client, model),
                    body,
                    message_id=f"{self._client}.{request.id}",
                )
                if stored.duplicate and await self.result(request.id) is None:
                    raise DuplicateId(
                        f"request id {request.id} is taken and still runs", field="id"
                    )
        except QueueFull as error:
            raise Overloaded(str(error), retry_after_ms=RETRY_AFTER_MS) from error
        except TimeoutError:
            raise _too_late(request.id) from None
        return stored.duplicate

    async def _next(
        self, request_id: str, events: "_Stream", quiet_s: float, give_up_at: float
    ) -> OutputEvent:
        """The next event to show, from the bus or, after silence, from the stored result."""
        while True:
            left_s = give_up_at - asyncio.get_running_loop().time()
            event = await events.next(min(quiet_s, max(left_s, 0.0)))
            if event is None:
                event = await self._stored_final(request_id)
            if event is not None and (events.filter.take(event) or event.final):
                return event
            if left_s <= 0:
                raise _too_late(request_id)

    async def _stored_final(self, request_id: str) -> OutputEvent | None:
        """An outage of the server ends no stream: what was accepted goes on, and so do we."""
        try:
            result = await self.result(request_id)
        except BusError as error:
            if self._bus.closed.is_set():
                raise
            log.info("result_not_read", request=request_id, error=str(error))
            return None
        return None if result is None else final_event(result)

    def _look_up_all(self) -> None:
        for events in self._streams:
            events.look_up()


class _Stream:
    """The events of one request as they arrive; None stands for "look at the stored result"."""

    def __init__(self) -> None:
        self.filter = EventFilter()
        self._queue: asyncio.Queue[OutputEvent | None] = asyncio.Queue(EVENTS_WAITING_MAX)

    async def open(self, bus: Bus, subject: str) -> None:
        self._subscription = await bus.subscribe(subject, self._on_message)

    async def close(self) -> None:
        await self._subscription.close()

    async def next(self, quiet_s: float) -> OutputEvent | None:
        """The next event; None after `quiet_s` of silence or when told to look up."""
        try:
            async with asyncio.timeout(quiet_s):
                return await self._queue.get()
        except TimeoutError:
            return None

    def look_up(self) -> None:
        if not self._queue.full():
            self._queue.put_nowait(None)

    def _on_message(self, message: Message) -> None:
        try:
            event = decode(message.data, OutputEvent)
        except BadRequest as error:
            log.warning("event_ignored", reason=error.message)
            return
        if self._queue.full():
            # The reader is far behind; it will see the gap and take the stored result.
            self.filter.lost()
            self._queue.get_nowait()
        self._queue.put_nowait(event)


def checked_body(request: Request, max_payload: int) -> bytes:
    """The request as it goes on the wire, from now. Raises BadRequest for what would be refused."""
    check_token(request.id, "id")
    try:
        prompt_bytes = len(prompt_text(request).encode())
    except UnicodeEncodeError as error:
        raise BadRequest(f"prompt is not Unicode text: {error.reason}", field="prompt") from None
    if prompt_bytes > PROMPT_BYTES_MAX:
        raise BadRequest(
            f"prompt has {prompt_bytes} bytes, the limit is {PROMPT_BYTES_MAX}",
            field="prompt",
            limit=PROMPT_BYTES_MAX,
        )
    try:
        body = encode(msgspec.structs.replace(request, sent_at_ms=wall_ms()))
    except UnicodeEncodeError as error:
        raise BadRequest(f"the body is not Unicode text: {error.reason}", field="body") from None
    room = max_payload - HOP_ROOM_BYTES
    if len(body) > room:
        raise BadRequest(
            f"the request has {len(body)} bytes encoded, the limit is {room}",
            field="body",
            limit=room,
        )
    return body


def _too_late(request_id: str) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"nothing final was heard of {request_id} within its deadline", field="deadline_ms"
    )


def as_error(body: ErrorBody) -> RequestError:
    """The exception for an `error` event. An unknown code becomes a plain RequestError."""
    kind = _ERRORS.get(body.code, RequestError)
    return kind(
        body.message, field=body.field, limit=body.limit, retry_after_ms=body.retry_after_ms
    )
