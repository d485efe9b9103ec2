"""The tagger: drains REQUESTS, estimates each answer's length, hands the request to TAGGED.

The model runs on threads of its own, one prompt a thread: on a CPU a batch is no faster than its
parts. Every request has a time budget; past it, it goes on with the running median. The budget
bounds the model's queue as well: a prompt whose turn comes too late is not computed any more.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from pipeline.bus import Bus, WorkQueue
from pipeline.bus.service import serve
from pipeline.bus.topology import tagger_consumer
from pipeline.cancels import Cancels
from pipeline.estimates import Estimate, RunningMedian, rough_prompt_tokens
from pipeline.intake import Intake
from pipeline.messages import LengthEstimate
from tagger.model import LengthModel

log = structlog.get_logger()

IN_HAND_MAX = 64
STOP_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class TaggerSettings:
    """What a person can choose."""

    budget_ms: float = 100.0
    """Longest wait for an estimate: small against a prefill, large against the model's time."""
    threads: int = 1
    """Prompts that are estimated at once, one core each."""


class ModelEstimator:
    """The length model within a time budget, the running median past it."""

    def __init__(self, model: LengthModel, median: RunningMedian, settings: TaggerSettings) -> None:
        self._model = model
        self._median = median
        self._budget_s = settings.budget_ms / 1000
        self._threads = ThreadPoolExecutor(settings.threads, thread_name_prefix="length")

    async def estimate(self, prompt: str) -> Estimate:
        started = time.perf_counter()
        job = asyncio.get_running_loop().run_in_executor(
            self._threads, self._compute, prompt, started + self._budget_s / 2
        )
        try:
            async with asyncio.timeout(self._budget_s):
                computed = await job
        except TimeoutError:
            computed = None
        except Exception:
            log.exception("length_model_failed")
            computed = None
        took_ms = (time.perf_counter() - started) * 1000
        if computed is None:
            return Estimate(
                rough_prompt_tokens(prompt), self._median.length("median_late"), took_ms
            )
        prompt_tokens, length = computed
        return Estimate(prompt_tokens, length, took_ms)

    def _compute(self, prompt: str, start_by: float) -> tuple[int, LengthEstimate] | None:
        """On a model thread. None when its turn came too late to be of use."""
        if time.perf_counter() > start_by:
            return None
        prompt_tokens, (p10, p50, p90) = self._model.estimate_one(prompt)
        return prompt_tokens, LengthEstimate(p10=p10, p50=p50, p90=p90, source=self._model.name)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


async def serve_tagger(bus: Bus, settings: TaggerSettings, stop: asyncio.Event) -> None:
    """Run one tagger until `stop`."""
    model = await asyncio.to_thread(LengthModel.load)
    median = RunningMedian()
    await bus.subscribe(bus.subjects.all_finished, median.finished)
    cancels = Cancels()
    await cancels.start(bus)
    estimator = ModelEstimator(model, median, settings)
    intake = Intake(bus, estimator, cancels, stage="tagger")
    queue = WorkQueue(bus, tagger_consumer(bus.subjects), intake.handle, in_hand_max=IN_HAND_MAX)
    service = await serve(
        bus, "tagger", "Estimates answer lengths.", metadata={"model": model.name}
    )
    log.info("tagger_ready", model=model.name, providers=list(model.providers))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(queue.run())
        await stop.wait()
        await service.stop()
        await queue.stop(STOP_GRACE_S)
    estimator.close()
