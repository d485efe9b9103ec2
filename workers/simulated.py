"""An engine without a model: vLLM's scheduler, a published GPU's step times, made-up words.

Its truth is the predictor's own scheduler and step formula plus what the predictor is not told:
CPU time a step, noise, and how long each answer will be. One task runs the steps; a request's
stream only counts the tokens that its reader has not taken yet, so a slow reader finds several in
one delta and holds nobody up.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from math import ceil

import msgspec

from pipeline.errors import (
    DuplicateId,
    EngineFailed,
    Overloaded,
    PromptTooLong,
    UsageError,
)
from pipeline.messages import (
    STEPS_REPORTED_MAX,
    EngineLimits,
    FinishReason,
    Phase,
    StepSample,
)
from predictor.scheduler import Scheduler, Sequence
from predictor.step_time import DEFAULT_PROFILE, LIMITS, PROFILES, scaled
from workers.engine import Delta, EngineReady, EngineRequest, EngineStats, Progress
from workers.simulated_answer import Words, answer_length
from workers.simulated_time import Pace, TrueStepTime

RETRY_AFTER_MS_MIN = 50

_RANGES: dict[str, tuple[float, float]] = {
    "kv_blocks": (1, 1e9),
    "max_num_seqs": (1, 1e6),
    "max_num_batched_tokens": (1, 1e9),
    "max_model_len": (2, 1e9),
    "queue_max": (1, 1e6),
    "overhead_ms": (0, 1e6),
    "noise": (0, 2),
    "time_scale": (0, 1000),
    "length_median": (1, 1e6),
    "length_sigma": (0, 3),
}


@dataclass(frozen=True, slots=True)
class SimulatedSettings:
    """Checked when made; raises UsageError. A limit that is None is the profile's own."""

    profile: str = DEFAULT_PROFILE
    model: str = "simulated"
    kv_blocks: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    queue_max: int = 256
    """Requests that may wait in the engine; more are refused."""
    overhead_ms: float = 6.0
    """CPU time of every step, which the engine does not report."""
    noise: float = 0.05
    """Sigma of the log-normal factor, of mean 1, on every step."""
    time_scale: float = 1.0
    """1 is real time, 0.1 ten times as fast, 0 as fast as it can be computed."""
    seed: int = 0
    length_median: float = 286.0
    """Of the answers whose request does not state a length; ShareGPT's with Llama-2-7B."""
    length_sigma: float = 0.7

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise UsageError(f"profile {self.profile!r}: choose from {', '.join(PROFILES)}")
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise UsageError(f"{name} {value}: must be from {least:g} to {most:g}")
        limits = self.limits()
        if limits.kv_blocks * limits.block_size < limits.max_model_len:
            raise UsageError(
                f"kv_blocks {limits.kv_blocks}: {limits.block_size} tokens each do not hold one "
                f"request of max_model_len {limits.max_model_len}; raise it or lower max_model_len"
            )

    def limits(self) -> EngineLimits:
        """The profile's limits with this setting's own in their place."""
        names = ("kv_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len")
        own = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return msgspec.structs.replace(LIMITS[self.profile], **own)


@dataclass(slots=True, eq=False)
class _Stream:
    """Between the step loop and one reader."""

    sequence: Sequence
    finish_reason: FinishReason
    """That it will have, once it has finished."""
    words: Words
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    untaken: int = 0
    """Tokens generated that the reader has not seen."""
    finished: bool = False
    aborted: bool = False
    failure: str | None = None

    def take(self) -> Delta | None:
        """Everything new since the last call, as one delta."""
        tokens, self.untaken = self.untaken, 0
        if not tokens:
            return None
        text = self.words.take(tokens)
        if not self.finished:
            return Delta(text, tokens)
        return Delta(
            text,
            tokens,
            self.finish_reason,
            prompt_tokens=self.sequence.prompt_tokens,
            preemptions=self.sequence.preemptions,
        )


class SimulatedEngine:
    """Implements workers.engine.Engine."""

    name = "simulated"

    def __init__(self, settings: SimulatedSettings | None = None) -> None:
        self._settings = settings or SimulatedSettings()
        self._limits = self._settings.limits()
        self._scheduler = Scheduler(self._limits)
        self._step_time = TrueStepTime(
            PROFILES[self._settings.profile],
            overhead_ms=self._settings.overhead_ms,
            noise=self._settings.noise,
            seed=self._settings.seed,
        )
        self._streams: dict[str, _Stream] = {}
        self._steps = 0
        self._samples: deque[StepSample] = deque(maxlen=STEPS_REPORTED_MAX)
        self._last_step_ms = 0.0
        self._work = asyncio.Event()
        self._failed = asyncio.Event()
        self._down: str | None = "the engine was not started"
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> EngineReady:
        """The step time handed out lacks overhead and noise: there is that to learn."""
        if self._task is not None:
            raise RuntimeError("the engine was started before")
        self._down = None
        self._task = asyncio.create_task(self._run(), name="simulated-engine")
        return EngineReady(
            model=self._settings.model,
            limits=self._limits,
            # At a scale of 0 no prediction in milliseconds can hold; the order still does.
            step_time=scaled(PROFILES[self._settings.profile], self._settings.time_scale or 1.0),
        )

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Delta, None]:
        """Stream the answer from the moment of the first `anext`. Closing it aborts the request.

        Raises BadRequest, PromptTooLong, DuplicateId, Overloaded, EngineFailed.
        """
        stream = self._admit(request)
        try:
            while True:
                await stream.changed.wait()
                stream.changed.clear()
                delta = stream.take()
                if delta is not None:
                    yield delta
                    if delta.finish_reason is not None:
                        return
                if stream.aborted:
                    return
                if stream.failure is not None:
                    raise EngineFailed(stream.failure)
        finally:
            self._leave(stream)

    async def abort(self, key: str) -> None:
        stream = self._streams.get(key)
        if stream is not None and not stream.finished:
            stream.aborted = True
            stream.changed.set()
            self._leave(stream)

    def stats(self) -> EngineStats:
        scheduler = self._scheduler
        running = {s.key: _progress(s, _running_phase(s)) for s in scheduler.running}
        waiting = {s.key: _progress(s, _waiting_phase(s)) for s in scheduler.waiting}
        return EngineStats(
            running=len(running),
            waiting=len(waiting),
            kv_blocks_used=scheduler.blocks_used,
            preemptions=scheduler.preemptions,
            steps=self._steps,
            progress=running | waiting,
        )

    def take_steps(self) -> list[StepSample]:
        taken = list(self._samples)
        self._samples.clear()
        return taken

    async def wait_failed(self) -> str:
        await self._failed.wait()
        return self._down or ""

    async def close(self) -> None:
        """Open streams end with EngineFailed; a closed engine does not start again."""
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._go_down(self._down or "the engine was closed")

    def _admit(self, request: EngineRequest) -> _Stream:
        """Into the scheduler's queue. Raises the RequestError that says why not."""
        prompt_tokens = max(1, request.prompt_tokens)
        room_tokens = self._scheduler.room(prompt_tokens)
        if self._down is not None:
            raise EngineFailed(self._down)
        if request.key in self._streams:
            raise DuplicateId(f"{request.key} is already in the engine", field="id")
        if room_tokens < 1:
            raise PromptTooLong(
                f"{prompt_tokens} prompt tokens leave no room for an answer",
                field="prompt",
                limit=self._limits.max_model_len - 1,
            )
        target_tokens, finish_reason = answer_length(
            request.request,
            request.prompt,
            room_tokens,
            seed=self._settings.seed,
            median=self._settings.length_median,
            sigma=self._settings.length_sigma,
        )
        if len(self._scheduler.waiting) >= self._settings.queue_max:
            raise self._overloaded()
        sequence = Sequence(request.key, prompt_tokens, target_tokens, priority=request.priority)
        stream = _Stream(sequence, finish_reason, Words(request.prompt))
        self._scheduler.add(sequence)
        self._streams[request.key] = stream
        self._work.set()
        return stream

    def _overloaded(self) -> Overloaded:
        """Come back when about one of those running will have left."""
        between_ends_ms = (
            self._last_step_ms * self._settings.length_median / self._limits.max_num_seqs
        ) * self._settings.time_scale
        return Overloaded(
            "the engine's queue is full",
            limit=self._settings.queue_max,
            retry_after_ms=max(RETRY_AFTER_MS_MIN, ceil(between_ends_ms)),
        )

    def _leave(self, stream: _Stream) -> None:
        """The request is over, however it ended. Its key may come again already."""
        key = stream.sequence.key
        if self._streams.get(key) is stream:
            del self._streams[key]
            self._scheduler.abort(key)

    async def _run(self) -> None:
        try:
            await self._run_steps()
        except Exception as error:  # whatever it was, nobody must wait for this loop any more
            self._go_down(f"the step loop broke: {error!r}")
            self._failed.set()

    async def _run_steps(self) -> None:
        pace = Pace()
        while True:
            if not len(self._scheduler):
                self._work.clear()
                await self._work.wait()
                pace = Pace()
            plan = self._scheduler.step()
            self._last_step_ms = self._step_time.next_ms(plan.load)
            await pace.wait(self._last_step_ms / 1000 * self._settings.time_scale)
            self._steps += 1
            self._samples.append(
                StepSample(
                    plan.load.tokens,
                    plan.load.prefill_work,
                    plan.load.context_tokens,
                    plan.load.sequences,
                    self._last_step_ms * self._settings.time_scale,
                )
            )
            for sequence, finished in self._scheduler.complete(plan):
                stream = self._streams[sequence.key]
                stream.untaken += 1
                stream.finished = finished
                stream.changed.set()

    def _go_down(self, reason: str) -> None:
        self._down = reason
        for stream in self._streams.values():
            stream.failure = reason
            stream.changed.set()


def _progress(sequence: Sequence, phase: Phase) -> Progress:
    return Progress(phase, sequence.computed, sequence.generated)


def _running_phase(sequence: Sequence) -> Phase:
    return "decoding" if sequence.decoding else "prefilling"


def _waiting_phase(sequence: Sequence) -> Phase:
    return "preempted" if sequence.preemptions else "waiting"
