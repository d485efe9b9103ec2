"""An SGLang server as an engine, by its own HTTP API: `/v1/tokenize`, `/generate`,
`/abort_request`, `/v1/loads`.

The prompt is made into tokens first, by the server: so a chat has the model's own template, the
count is the engine's own, and what does not fit is clipped before it is refused.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import msgspec
import structlog

from pipeline.child import Child
from pipeline.errors import (
    DuplicateId,
    EngineFailed,
    Overloaded,
    PromptTooLong,
    UsageError,
)
from pipeline.messages import Request, StepSample
from predictor.scheduler import room
from predictor.step_time import PROFILES
from workers.engine import Delta, EngineDown, EngineReady, EngineRequest, EngineStats
from workers.openai_engine.load import read_loads
from workers.openai_engine.server import Server
from workers.openai_engine.stream import events
from workers.openai_engine.wire import RETRY_AFTER_MS, error_of
from workers.report import Receiver
from workers.sglang_engine import wire
from workers.sglang_engine.launch import free_port, launch
from workers.sglang_engine.limits import Told, read
from workers.sglang_engine.settings import SGLangSettings
from workers.sglang_engine.state import SGLangState
from workers.sglang_engine.watch import LOADS, until_ended, until_lost

WARM_UP_S = 120.0
POLL_EVERY_S = 0.1
CLOSES_S = 5.0
ABORT_S = 5.0
"""An answer to an abort has so long; after that the closed connection has to do."""

log = structlog.get_logger()


@dataclass(eq=False, slots=True)
class _Stream:
    """One request at the server."""

    rid: str
    sent: bool = False
    """It has been asked for, so the server may have it."""
    ended: bool = False
    aborted: bool = False
    response: aiohttp.ClientResponse | None = None


class SGLangEngine:
    """Implements workers.engine.Engine."""

    name = "sglang"

    def __init__(self, settings: SGLangSettings) -> None:
        self._settings = settings
        self._server: Server | None = None
        self._child: Child | None = None
        self._told: Told | None = None
        self._streams: dict[str, _Stream] = {}
        self._keys: dict[str, str] = {}
        """By the id that the server knows."""
        self._state = SGLangState(self._keys.get)
        self._exit = contextlib.ExitStack()
        self._down: str | None = "the engine was not started"
        self._failed = asyncio.Event()
        self._chores: set[asyncio.Task[None]] = set()

    async def start(self) -> EngineReady:
        """Start the server or find it, read its limits, and have it generate a token.

        Raises UsageError where it does not come up, or is no SGLang.
        """
        socket = self._listen()
        self._server = server = self._find(socket)
        await self._until_serving(server)
        self._told = told = read(await server.get("/server_info"), await server.get("/v1/models"))
        if told.unlike:
            log.warning("sglang_scheduler_unlike_the_simulated", **told.unlike)
        self._down = None
        async with asyncio.timeout(WARM_UP_S):
            await self._warm_up()
        if socket is not None and not self._state.exact:
            log.warning("sglang_scheduler_not_reporting", version=told.version, state="/v1/loads")
        await self._look(server)
        self.take_steps()
        self._chore(self._watch(server))
        return EngineReady(told.model, told.limits, PROFILES[self._settings.profile])

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Delta, None]:
        """Stream the answer. Closing it aborts the request.

        Raises BadRequest, PromptTooLong, DuplicateId, Overloaded, EngineDown, EngineFailed.
        """
        stream = self._admit(request.key)
        self._state.times.began(request.key)
        try:
            async with contextlib.aclosing(self._answer(stream, request)) as deltas:
                async for delta in deltas:
                    yield delta
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            if not stream.aborted:
                kind = EngineFailed if stream.sent else EngineDown
                raise kind(self._down or f"{type(error).__name__}: {error}") from error
        finally:
            self._state.times.ended(request.key)
            del self._streams[request.key], self._keys[stream.rid]
            if stream.sent and not (stream.ended or stream.aborted or self._down):
                # The closed connection says so, too, but not at once.
                self._chore(self._ask_to_abort(stream.rid))

    async def abort(self, key: str) -> None:
        stream = self._streams.get(key)
        if stream is not None and not stream.aborted:
            stream.aborted = True
            if stream.sent and self._down is None:
                await self._ask_to_abort(stream.rid)
            if stream.response is not None:
                stream.response.close()

    def stats(self) -> EngineStats:
        if self._told is None:
            return EngineStats(0, 0, 0, 0)
        return self._state.stats(self._told.limits, len(self._streams))

    def take_steps(self) -> list[StepSample]:
        return self._state.take_steps()

    async def wait_failed(self) -> str:
        await self._failed.wait()
        return self._down or ""

    async def close(self) -> None:
        """Open streams end with EngineFailed. A server that was started here ends, with all its
        processes."""
        chores = list(self._chores)
        for chore in chores:
            chore.cancel()
        await asyncio.gather(*chores, return_exceptions=True)
        self._go_down(self._down or "the engine was closed")
        if self._server is not None:
            await self._server.close()
        if self._child is not None:
            await self._child.stop(CLOSES_S)
        self._exit.close()

    # ------------------------------------------------------------------ one request

    def _admit(self, key: str) -> _Stream:
        if self._down is not None:
            raise EngineDown(self._down)
        if key in self._streams:
            raise DuplicateId(f"{key} is already in the engine", field="id")
        if len(self._streams) >= self._settings.requests_max:
            raise Overloaded(
                "the engine has all the requests that it may have",
                limit=self._settings.requests_max,
                retry_after_ms=RETRY_AFTER_MS,
            )
        if not self._streams:
            self._state.moved()  # until now it had nothing to do
        # SGLang aborts every id that begins with the one named: ours are all of one length.
        stream = self._streams[key] = _Stream(secrets.token_hex(8))
        self._keys[stream.rid] = key
        return stream

    async def _answer(self, stream: _Stream, request: EngineRequest) -> AsyncGenerator[Delta, None]:
        told, server = self._told, self._server
        assert told is not None and server is not None  # noqa: S101  or nobody is admitted
        ids = await self._token_ids(server, request.request)
        room_tokens = room(told.limits, len(ids))
        if room_tokens < 1:
            raise PromptTooLong(
                f"{len(ids)} prompt tokens leave no room for an answer",
                field="prompt",
                limit=room(told.limits, 1),
            )
        if stream.aborted:
            return
        priority = told.priority_sign * request.priority if told.priority_sign else None
        body = wire.generate_body(request.request, ids, room_tokens, stream.rid, priority)
        stream.sent = True
        async with server.session.post("/generate", json=body) as response:
            stream.response = response
            if response.status != 200:
                raise error_of(
                    response.status, await response.read(), response.headers.get("Retry-After")
                )
            counted = wire.Counted(incremental=told.incremental)
            async with contextlib.aclosing(events(response.content)) as stream_events:
                async for data in stream_events:
                    delta = counted.take(data)
                    stream.ended = counted.ended is not None
                    if delta is not None:
                        if delta.tokens:
                            self._state.moved()
                            self._state.times.grew(request.key, delta.tokens, len(ids))
                        yield delta
        self._check_end(stream, counted.ended)

    def _check_end(self, stream: _Stream, ended: wire.Reason | None) -> None:
        """Raises what an end means that is none of an answer, and that nobody here asked for."""
        if stream.aborted:
            return
        if ended is None:
            raise EngineFailed(self._down or "SGLang's stream ended in the middle of the answer")
        if ended.type == wire.ABORT:
            raise EngineFailed(self._down) if self._down else wire.error_of_abort(ended)

    async def _token_ids(self, server: Server, request: Request) -> list[int]:
        body = wire.tokenize_body(request)
        async with server.session.post("/v1/tokenize", json=body) as response:
            answer = await response.read()
            if response.status != 200:
                raise error_of(response.status, answer)
        try:
            return wire.decode_tokenized(answer).tokens
        except msgspec.DecodeError as error:
            raise EngineFailed(f"SGLang's tokens cannot be read: {error}") from error

    async def _ask_to_abort(self, rid: str) -> None:
        assert self._server is not None  # noqa: S101
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with (
                asyncio.timeout(ABORT_S),
                self._server.session.post("/abort_request", json={"rid": rid}),
            ):
                pass

    # ------------------------------------------------------------------ the server

    def _listen(self) -> str | None:
        """Where the scheduler is to report, if it is."""
        settings = self._settings
        path = settings.socket
        if not path:
            if settings.url or not settings.exact:
                return None
            folder = self._exit.enter_context(TemporaryDirectory(prefix="astrolabe-sglang-"))
            path = str(Path(folder) / "scheduler.sock")
        try:
            receiver = self._exit.enter_context(contextlib.closing(Receiver(path)))
        except OSError as error:
            raise UsageError(f"socket {path}: {error}") from error
        loop = asyncio.get_running_loop()

        def readable() -> None:
            for report in receiver.take():
                if self._told is not None and self._told.reports:
                    self._state.reported(report)

        loop.add_reader(receiver.socket, readable)
        self._exit.callback(loop.remove_reader, receiver.socket)
        return path

    def _find(self, socket: str | None) -> Server:
        if self._settings.url:
            return Server(self._settings.root, self._settings)
        port = free_port()
        self._child = launch(self._settings, port, socket)
        log.info("sglang_starting", port=port, log=str(self._child.log_file))
        return Server(f"http://127.0.0.1:{port}", self._settings)

    async def _until_serving(self, server: Server) -> None:
        """Raises UsageError where it does not come up."""
        if self._child is None:
            await server.wait_serving()
            return
        waits = [
            asyncio.create_task(server.wait_serving()),
            asyncio.create_task(until_ended(self._child)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if waits[1].done():
                raise UsageError(f"{waits[1].result()}: {self._child.log_tail(1)}")
            waits[0].result()
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _watch(self, server: Server) -> None:
        def still_s() -> float:
            return self._state.still_s() if self._streams else 0.0

        polling = asyncio.create_task(self._poll(server))
        try:
            reason = await until_lost(server, self._child, still_s, self._settings.stall_timeout_s)
        finally:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
        self._go_down(reason)
        await server.close()  # those that wait for the beginning of an answer hear of it, too
        self._failed.set()

    async def _poll(self, server: Server) -> None:
        while True:
            await asyncio.sleep(POLL_EVERY_S)
            if not self._state.exact:
                await self._look(server)

    async def _look(self, server: Server) -> None:
        loads: Any = await server.get(LOADS)
        with contextlib.suppress(ValueError):  # the next look, or the watch, says more
            if loads is not None:
                self._state.polled(read_loads(loads))

    async def _warm_up(self) -> None:
        request = Request(id="warm-up", prompt="Hello", max_tokens=2, ignore_eos=True)
        async with contextlib.aclosing(
            self.generate(EngineRequest("warm-up", request, "Hello", 1))
        ) as deltas:
            async for _ in deltas:
                pass

    def _chore(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    def _go_down(self, reason: str) -> None:
        self._down = reason
        for stream in self._streams.values():
            if stream.response is not None:
                stream.response.close()
