"""vLLM's AsyncLLM as an engine. The model runs in a process of vLLM's own."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.errors import (
    BadRequest,
    DuplicateId,
    EngineFailed,
    Overloaded,
    PromptTooLong,
    RequestError,
)
from pipeline.messages import EngineLimits, FinishReason, Request, StepSample
from predictor.step_time import PROFILES
from workers.engine import Delta, EngineDown, EngineReady, EngineRequest, EngineStats
from workers.report import Receiver
from workers.token_times import TokenTimes
from workers.vllm_engine import internals
from workers.vllm_engine.asked import sampling, token_ids
from workers.vllm_engine.making import made
from workers.vllm_engine.settings import VLLMSettings
from workers.vllm_engine.state import VLLMState
from workers.vllm_engine.watch import until_lost

RETRY_AFTER_MS = 500
WARM_UP_S = 300.0
CLOSES_S = 10.0
REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "repetition": "stop"}


@dataclass(eq=False, slots=True)
class _Stream:
    """One request in the engine."""

    request_id: str
    aborted: bool = False


class VLLMEngine:
    """Implements workers.engine.Engine."""

    name = "vllm"

    def __init__(self, settings: VLLMSettings) -> None:
        self._settings = settings
        self._engine: Any = None
        self._limits: EngineLimits | None = None
        self._streams: dict[str, _Stream] = {}
        self._keys: dict[str, str] = {}
        """By the id that the engine knows."""
        self._state = VLLMState(self._keys.get)
        self._times: TokenTimes | None = None
        """Where the scheduler tells of no steps."""
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
        self._exit = contextlib.ExitStack()
        self._down: str | None = "the engine was not started"
        self._failed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> EngineReady:
        """Load the model, and have it generate a token. Raises UsageError for vLLM's own flags."""
        folder = self._exit.enter_context(TemporaryDirectory(prefix="astrolabe-vllm-"))
        socket = str(Path(folder) / "scheduler.sock")
        self._engine, exact = await asyncio.to_thread(
            made, self._settings, socket, self._state.counted
        )
        config = self._engine.vllm_config
        self._limits = internals.limits_of(config)
        if exact:
            self._listen(self._exit.enter_context(contextlib.closing(Receiver(socket))))
        else:
            self._times = TokenTimes()
        self._down = None
        async with asyncio.timeout(WARM_UP_S):
            await self._warm_up()
        self.take_steps()
        self._watching = asyncio.create_task(self._watch())
        model = config.model_config.served_model_name or self._settings.model
        return EngineReady(model, self._limits, PROFILES[self._settings.profile])

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Delta, None]:
        """Stream the answer. Closing it aborts the request.

        Raises BadRequest, PromptTooLong, DuplicateId, Overloaded, EngineFailed.
        """
        stream = self._admit(request.key)
        try:
            async with contextlib.aclosing(self._answer(stream, request)) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            del self._streams[request.key], self._keys[stream.request_id]

    async def abort(self, key: str) -> None:
        stream = self._streams.get(key)
        if stream is not None and not stream.aborted:
            stream.aborted = True
            await self._engine.abort(stream.request_id)

    def stats(self) -> EngineStats:
        if self._limits is None:
            return EngineStats(0, 0, 0, 0)
        return self._state.stats(self._limits.kv_blocks, len(self._streams))

    def take_steps(self) -> list[StepSample]:
        return self._state.take_steps() if self._times is None else self._times.take()

    async def wait_failed(self) -> str:
        await self._failed.wait()
        return self._down or ""

    async def close(self) -> None:
        """Open streams end with EngineFailed; none of vLLM's processes is left."""
        self._down = self._down or "the engine was closed"
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._engine is not None:
            await self._give_up_all()
            internals.stop_reading(self._engine)
            await asyncio.to_thread(_end, self._engine)
        self._tokenizing.shutdown(wait=False, cancel_futures=True)
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
        # vLLM takes an id twice and then aborts both: one of ours is new every time.
        stream = self._streams[key] = _Stream(secrets.token_hex(8))
        self._keys[stream.request_id] = key
        return stream

    async def _answer(self, stream: _Stream, request: EngineRequest) -> AsyncGenerator[Delta, None]:
        ids = await asyncio.get_running_loop().run_in_executor(
            self._tokenizing, token_ids, self._engine.get_tokenizer(), request
        )
        room = self._room(len(ids))
        if stream.aborted:
            return
        try:
            async with contextlib.aclosing(
                self._engine.generate(
                    {"prompt_token_ids": ids},
                    sampling(request.request, room),
                    stream.request_id,
                    priority=request.priority if self._orders_by_priority else 0,
                )
            ) as outputs:
                async for delta in self._deltas(stream, request.key, outputs, len(ids)):
                    yield delta
        except RequestError:
            raise
        except Exception as error:  # vLLM's own have no common base
            if not stream.aborted:
                raise self._named(error) from error

    async def _deltas(
        self, stream: _Stream, key: str, outputs: Any, prompt_tokens: int
    ) -> AsyncGenerator[Delta, None]:
        if self._times is not None:
            self._times.began(key)
        try:
            async for output in outputs:
                one = output.outputs[0]
                tokens = len(one.token_ids)
                if self._times is not None and tokens:
                    self._times.grew(key, tokens, prompt_tokens)
                if not output.finished:
                    yield Delta(one.text, tokens)
                elif one.finish_reason in REASONS:
                    metrics = getattr(output, "metrics", None)
                    yield Delta(
                        one.text,
                        tokens,
                        REASONS[one.finish_reason],
                        prompt_tokens=prompt_tokens,
                        preemptions=getattr(metrics, "num_preemptions", 0),
                    )
                elif not stream.aborted:
                    raise EngineFailed(self._down or f"vLLM ended it: {one.finish_reason}")
        finally:
            if self._times is not None:
                self._times.ended(key)

    def _room(self, prompt_tokens: int) -> int:
        """Most tokens that may follow. Raises PromptTooLong where there is none."""
        assert self._limits is not None  # noqa: S101  read by start
        limits = self._limits
        longest = min(limits.max_model_len, limits.kv_blocks * limits.block_size)
        if prompt_tokens >= longest:
            raise PromptTooLong(
                f"{prompt_tokens} prompt tokens leave no room for an answer",
                field="prompt",
                limit=longest - 1,
            )
        return longest - prompt_tokens

    def _named(self, error: Exception) -> Exception:
        """As the errors of every other engine."""
        name = type(error).__name__
        if name in ("QueueOverflowError", "MaxQueuedTokensError"):
            return Overloaded("vLLM's queue is full", retry_after_ms=RETRY_AFTER_MS)
        if name in ("VLLMValidationError", "VLLMClientError"):
            return BadRequest(str(error))
        if self._engine.errored:  # known here before whoever watches it looks again
            self._down = self._down or f"vLLM's engine process has died: {name}"
        return EngineFailed(self._down or f"{name}: {error}")

    @property
    def _orders_by_priority(self) -> bool:
        policy: str = self._engine.vllm_config.scheduler_config.policy
        return policy == "priority"

    # ------------------------------------------------------------------ the engine

    def _listen(self, receiver: Receiver) -> None:
        loop = asyncio.get_running_loop()

        def readable() -> None:
            for report in receiver.take():
                self._state.reported(report)

        loop.add_reader(receiver.socket, readable)
        self._exit.callback(loop.remove_reader, receiver.socket)

    async def _watch(self) -> None:
        self._down = await until_lost(self._engine, self._settings.hang_timeout_s)
        self._failed.set()
        await self._give_up_all()

    async def _give_up_all(self) -> None:
        """Every open stream ends, by vLLM's word or without it."""
        for stream in list(self._streams.values()):
            with contextlib.suppress(Exception):
                await self._engine.abort(stream.request_id)

    async def _warm_up(self) -> None:
        request = Request(id="warm-up", prompt="Hello", max_tokens=2, ignore_eos=True)
        async with contextlib.aclosing(
            self.generate(EngineRequest("warm-up", request, "Hello", 1))
        ) as deltas:
            async for _ in deltas:
                pass


def _end(engine: Any) -> None:
    """Shut it down; a process that does not go is killed."""
    processes = internals.processes_of(engine)
    with contextlib.suppress(Exception):  # what remains of a broken engine may refuse anything
        engine.shutdown(CLOSES_S)
    for process in processes:
        if process.is_alive():
            process.kill()
        process.join(CLOSES_S)
