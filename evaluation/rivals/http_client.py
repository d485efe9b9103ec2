"""One streamed chat completion over HTTP, watched as a client watches it."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Self

import msgspec
from aiohttp import (
    ClientConnectionError,
    ClientPayloadError,
    ClientSession,
    ClientTimeout,
    TCPConnector,
)

from evaluation.rivals.seen import Ending, Seen
from evaluation.rivals.wire import DATA, ChatRequest, StreamOptions
from evaluation.rivals.workload import Arrival
from pipeline.messages import Usage

REQUEST_S = 120.0
"""Longest answer that is waited for."""
CONNECT_S = 5.0
DETAIL_CHARS_MAX = 300
LINE_BYTES_MAX = 2**20
END_MARK = b"[DONE]"
PATH = "/v1/chat/completions"


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    """Of an event's body, what is looked at."""

    choices: list[_Choice] = []
    usage: Usage | None = None
    system_fingerprint: str | None = None
    error: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(_Event).decode


class HttpClient:
    """Sends to one base URL. As many connections as there are requests in flight."""

    def __init__(self, session: ClientSession, url: str, model: str) -> None:
        self.url = url
        self._session = session
        self._model = model

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str, model: str) -> AsyncGenerator[Self, None]:
        timeout = ClientTimeout(total=None, sock_connect=CONNECT_S)
        async with ClientSession(
            timeout=timeout, connector=TCPConnector(limit=0), read_bufsize=LINE_BYTES_MAX
        ) as session:
            yield cls(session, url, model)

    async def get(self, path: str, *, url: str | None = None) -> bytes:
        """Body of a GET, also from another server. Raises aiohttp's ClientError."""
        async with self._session.get((url or self.url) + path, raise_for_status=True) as response:
            return await response.read()

    async def send(self, arrival: Arrival, due_at: float, *, within_s: float = REQUEST_S) -> Seen:
        """Send and follow to the end, however it ends; of an answer there is always a `Seen`."""
        watch = _Watch(arrival.id, due_at)
        try:
            async with asyncio.timeout(within_s):
                await self._follow(arrival, watch, stream=True)
        except TimeoutError:
            return watch.ended("late")
        except msgspec.DecodeError as error:
            return watch.ended("error_event", f"an event that is none of the API's: {error}")
        except ClientPayloadError as error:
            return watch.ended("cut", repr(error))
        except (ClientConnectionError, OSError) as error:
            return watch.ended("cut" if watch.begun else "unreachable", repr(error))
        return watch.seen

    async def open_and_leave(self, arrival: Arrival, leave_after_s: float, *, stream: bool) -> None:
        """Send a request, and go away from it after that time."""
        watch = _Watch(arrival.id, time.monotonic())
        try:
            async with asyncio.timeout(leave_after_s):
                await self._follow(arrival, watch, stream=stream)
        except TimeoutError:
            return
        raise RuntimeError(f"{arrival.id} was over ({watch.seen.ending}) before its client left")

    async def _follow(self, arrival: Arrival, watch: "_Watch", *, stream: bool) -> None:
        body = ChatRequest(
            model=self._model,
            messages=list(arrival.messages),
            max_tokens=arrival.answer_tokens,
            ignore_eos=True,
            stream=stream,
            stream_options=StreamOptions(include_usage=True) if stream else None,
        )
        async with self._session.post(
            self.url + PATH,
            data=msgspec.json.encode(body),
            headers={"Content-Type": "application/json"},
        ) as response:
            if response.status != 200:
                watch.ended("refused", f"{response.status} {await response.text()}")
                return
            if not stream:
                await response.read()
                return
            async for line in response.content:
                # To the very end, also past the end mark: the connection is used again.
                if line.startswith(DATA):
                    watch.take(line[len(DATA) :].strip())
            watch.stopped()


class _Watch:
    """Puts together what is seen of one answer."""

    def __init__(self, request_id: str, due_at: float) -> None:
        self._due_at = due_at
        self._reason: str | None = None
        self._marked = False
        self.seen = Seen(request_id, "cut", send_lag_ms=self._since_ms())

    @property
    def begun(self) -> bool:
        return self.seen.ttft_ms is not None

    def take(self, data: bytes) -> None:
        """One event's body."""
        if data == END_MARK:
            self._marked = True
            if self._reason is not None:
                self.ended("whole")
            return
        event = _decode(data)
        if bytes(event.error) not in (b"", b"null"):
            self.ended("error_event", bytes(event.error).decode(errors="replace"))
        for choice in event.choices:
            if choice.delta is not None and choice.delta.content:
                self._token(event.system_fingerprint)
            self._reason = choice.finish_reason or self._reason
        if event.usage is not None:
            self.seen = replace(self.seen, tokens=event.usage.completion_tokens)

    def stopped(self) -> None:
        """The stream is over, and nothing is wrong with the connection."""
        reason = "without" if self._reason is None else "with"
        mark = "with" if self._marked else "without"
        self.ended("cut", f"the stream ended {reason} a reason, {mark} an end mark")

    def ended(self, ending: Ending, detail: str = "") -> Seen:
        """The answer is over. Only the first end counts: what follows it is the connection's."""
        if self.seen.e2e_ms is None:
            self.seen = replace(
                self.seen, ending=ending, e2e_ms=self._since_ms(), detail=detail[:DETAIL_CHARS_MAX]
            )
        return self.seen

    def _token(self, server: str | None) -> None:
        first_ms = self.seen.ttft_ms
        self.seen = replace(
            self.seen,
            ttft_ms=self._since_ms() if first_ms is None else first_ms,
            tokens=self.seen.tokens + 1,
            instance=server or self.seen.instance,
        )

    def _since_ms(self) -> float:
        return (time.monotonic() - self._due_at) * 1000
