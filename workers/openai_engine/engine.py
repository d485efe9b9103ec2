"""A server behind the OpenAI API as an engine: requests over a pool of connections, its load polled
beside them.

Closing a connection aborts its request: that is the one way which all these servers know.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import aiohttp

from pipeline.errors import (
    BadRequest,
    DuplicateId,
    EngineFailed,
    Overloaded,
    PromptTooLong,
)
from pipeline.messages import EngineLimits, Request, StepSample
from predictor.step_time import PROFILES
from workers.engine import Delta, EngineDown, EngineReady, EngineRequest, EngineStats
from workers.openai_engine import wire
from workers.openai_engine.limits import read_limits
from workers.openai_engine.load import ServerLoad
from workers.openai_engine.server import MODELS, Server
from workers.openai_engine.settings import OpenAISettings
from workers.openai_engine.stream import Counted, decoded, events
from workers.token_times import TokenTimes

WARM_UP_S = 120.0
POLL_EVERY_S = 0.25
DETAILED = "continuous_usage_stats"


@dataclass(eq=False, slots=True)
class _Stream:
    """One request at the server."""

    prompt_tokens: int
    generated_tokens: int = 0
    response: aiohttp.ClientResponse | None = None
    aborted: bool = False


class OpenAIEngine:
    """Implements workers.engine.Engine."""

    name = "openai"

    def __init__(self, settings: OpenAISettings) -> None:
        self._settings = settings
        self._server: Server | None = None
        self._model = ""
        self._limits: EngineLimits | None = None
        self._load = ServerLoad()
        self._streams: dict[str, _Stream] = {}
        self._times = TokenTimes()
        self._detailed = True
        """Whether the server takes the wish for counts in every event."""
        self._down: str | None = "the engine was not started"
        self._failed = asyncio.Event()
        self._chores: list[asyncio.Task[None]] = []

    async def start(self) -> EngineReady:
        """Wait until the server serves, read its limits, and have it generate a token."""
        self._server = server = Server(self._settings.root, self._settings)
        await server.wait_serving()
        self._load = await server.load()
        self._model, self._limits = await read_limits(server.get, self._load, self._settings)
        self._down = None
        async with asyncio.timeout(WARM_UP_S):
            await self._warm_up()
        self._times.take()
        self._chores = [
            asyncio.create_task(self._watch(server)),
            asyncio.create_task(self._poll(server)),
        ]
        return EngineReady(self._model, self._limits, PROFILES[self._settings.profile])

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Delta, None]:
        """Stream the answer. Closing it aborts the request.

        Raises BadRequest, PromptTooLong, DuplicateId, Overloaded, EngineFailed.
        """
        stream = self._admit(request)
        self._times.began(request.key)
        try:
            async with contextlib.aclosing(self._answer(stream, request)) as deltas:
                async for delta in deltas:
                    if delta.tokens:
                        stream.generated_tokens += delta.tokens
                        self._times.grew(request.key, delta.tokens, stream.prompt_tokens)
                    yield delta
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            if not stream.aborted:
                raise EngineFailed(self._down or f"{type(error).__name__}: {error}") from error
        finally:
            self._times.ended(request.key)
            del self._streams[request.key]

    async def abort(self, key: str) -> None:
        stream = self._streams.get(key)
        if stream is not None:
            stream.aborted = True
            if stream.response is not None:
                stream.response.close()

    def stats(self) -> EngineStats:
        """The server's own numbers where it tells them, which may include others' requests."""
        limits, load, streams = self._limits, self._load, self._streams.values()
        if limits is None:
            return EngineStats(0, 0, 0, 0)
        running = min(len(streams), limits.max_num_seqs) if load.running is None else load.running
        waiting = max(0, len(streams) - running) if load.waiting is None else load.waiting
        if load.kv_share is None:
            held = (s.prompt_tokens + s.generated_tokens for s in streams if s.generated_tokens)
            blocks = sum(-(-tokens // limits.block_size) for tokens in held)
        else:
            blocks = round(load.kv_share * limits.kv_blocks)
        return EngineStats(
            running=running,
            waiting=waiting,
            kv_blocks_used=min(blocks, limits.kv_blocks),
            preemptions=load.preemptions or 0,
            source="reported" if load.tells else "ledger",
        )

    def take_steps(self) -> list[StepSample]:
        return self._times.take()

    async def wait_failed(self) -> str:
        await self._failed.wait()
        return self._down or ""

    async def close(self) -> None:
        """Open streams end with EngineFailed."""
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        self._go_down(self._down or "the engine was closed")
        if self._server is not None:
            await self._server.close()

    # ------------------------------------------------------------------ one request

    def _admit(self, request: EngineRequest) -> _Stream:
        if self._down is not None:
            raise EngineDown(self._down)
        if request.key in self._streams:
            raise DuplicateId(f"{request.key} is already in the engine", field="id")
        if len(self._streams) >= self._settings.requests_max:
            raise Overloaded(
                "all connections to the server are taken",
                limit=self._settings.requests_max,
                retry_after_ms=wire.RETRY_AFTER_MS,
            )
        stream = self._streams[request.key] = _Stream(max(1, request.prompt_tokens))
        return stream

    async def _answer(self, stream: _Stream, request: EngineRequest) -> AsyncGenerator[Delta, None]:
        """The deltas of one request, asked again where the server only minded how it was asked."""
        max_tokens = self._tokens_to_ask(request.request, stream.prompt_tokens)
        for _ in range(3):
            try:
                async with contextlib.aclosing(self._ask(stream, request, max_tokens)) as deltas:
                    async for delta in deltas:
                        yield delta
                return
            except BadRequest as error:
                if stream.generated_tokens or not self._detailed or DETAILED not in error.message:
                    raise
                self._detailed = False
            except PromptTooLong as error:
                # Some servers refuse prompt + max_tokens beyond the model's length; here, as with
                # every engine, the answer ends in `length` instead.
                told = wire.room_told(error.message) if wire.is_of_the_sum(error) else None
                room = -1 if told is None else self._known_limits.max_model_len - told
                if stream.generated_tokens or not 0 < room < max_tokens:
                    raise
                max_tokens = room
        raise EngineFailed("the server refused the same request three times")

    async def _ask(
        self, stream: _Stream, request: EngineRequest, max_tokens: int
    ) -> AsyncGenerator[Delta, None]:
        body = wire.body_of(request, self._model, max_tokens, priority=self._settings.priority)
        if not self._detailed:
            del body["stream_options"][DETAILED]
        # Of one length, so that none is the beginning of another; and nothing of the client's.
        headers = {"X-Request-Id": secrets.token_hex(16)}
        path = wire.path_of(request.request)
        assert self._server is not None  # noqa: S101  made by start, or nobody is admitted
        async with self._server.session.post(path, json=body, headers=headers) as response:
            stream.response = response
            if stream.aborted:
                return
            if response.status != 200:
                raise wire.error_of(
                    response.status, await response.read(), response.headers.get("Retry-After")
                )
            async with contextlib.aclosing(_deltas(response.content)) as deltas:
                async for delta in deltas:
                    yield delta

    def _tokens_to_ask(self, request: Request, prompt_tokens: int) -> int:
        """What is asked for is sent as it is: how long the prompt is, the server knows better."""
        if request.max_tokens is not None:
            return min(request.max_tokens, self._known_limits.max_model_len)
        return max(1, self._known_limits.max_model_len - prompt_tokens)

    # ------------------------------------------------------------------ the server

    @property
    def _known_limits(self) -> EngineLimits:
        assert self._limits is not None  # noqa: S101  read by start
        return self._limits

    async def _watch(self, server: Server) -> None:
        # SGLang's health waits for a second, and generates; its list of models does neither.
        route = MODELS if self._known_limits.rules == "sglang" else None
        self._go_down(await server.watch(route))
        self._failed.set()

    async def _poll(self, server: Server) -> None:
        while True:
            await asyncio.sleep(POLL_EVERY_S)
            self._load = await server.load()

    async def _warm_up(self) -> None:
        request = Request(id="warm-up", prompt="Hello", max_tokens=1)
        async with contextlib.aclosing(
            self.generate(EngineRequest("warm-up", request, "Hello", 1))
        ) as deltas:
            async for _ in deltas:
                pass

    def _go_down(self, reason: str) -> None:
        self._down = reason
        for stream in self._streams.values():
            if stream.response is not None:
                stream.response.close()


async def _deltas(content: aiohttp.StreamReader) -> AsyncGenerator[Delta, None]:
    """What a stream of events adds to the answer; the last delta has the reason of its end."""
    counted = Counted()
    async for data in events(content):
        chunk = decoded(data)
        if (error := wire.error_in(chunk)) is not None:
            raise error
        if (delta := counted.take(chunk)) is not None:
            yield delta
    yield counted.last()
