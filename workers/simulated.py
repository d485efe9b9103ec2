"""An engine without a model: a real one's scheduler, a published GPU's step times, made-up words.

Its truth is the predictor's own schedulers and step formula plus what the predictor is not told:
CPU time a step, noise, and how long each answer will be. One task runs the steps; a request's
stream only counts the tokens that its reader has not taken yet, so a slow reader finds several in
one delta and holds nobody up.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from math import ceil

from pipeline.errors import DuplicateId, EngineFailed, Overloaded, PromptTooLong
from pipeline.messages import STEPS_REPORTED_MAX, FinishReason, Phase, StepSample
from predictor.rules import step_by_step
from predictor.scheduler import Sequence
from predictor.step_time import PROFILES, scaled
from workers.engine import Delta, EngineDown, EngineReady, EngineRequest, EngineStats, Progress
from workers.simulated_answer import Words, answer_length
from workers.simulated_settings import SimulatedSettings
from workers.simulated_time import Pace, TrueStepTime

RETRY_AFTER_MS_MIN = 50


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
        self._scheduler = step_by_step(self._limits)
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
            admission=scheduler.admission,
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
            raise EngineDown(self._down)
        if request.key in self._streams:
            raise DuplicateId(f"{request.key} is already in the engine", field="id")
        if room_tokens < 1:
            raise PromptTooLong(
                f"{prompt_tokens} prompt tokens leave no room for an answer",
                field="prompt",
                limit=prompt_tokens + room_tokens - 1,
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
        sequence = Sequence(
            request.key,
            prompt_tokens,
            target_tokens,
            priority=request.priority,
            tokens_max=min(request.request.max_tokens or room_tokens, room_tokens),
        )
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
