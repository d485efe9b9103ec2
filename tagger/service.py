"""The tagger: drains REQUESTS, estimates each answer's length, hands the request to TAGGED."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import structlog

from pipeline.bus import Bus, Message, WorkQueue
from pipeline.bus.service import serve
from pipeline.bus.topology import tagger_consumer
from pipeline.cancels import Cancels
from pipeline.errors import UsageError
from pipeline.estimates import RunningMedian, rough_prompt_tokens
from pipeline.intake import Intake
from pipeline.metrics import LENGTH_MODEL_LOADED
from tagger.estimator import ModelEstimator, SimpleEstimator
from tagger.length_rule import SOURCE, by_prompt_length
from tagger.live_error import LiveError
from tagger.model import LengthModel, both_runtimes_installed
from tagger.runner import ModelRunner, batch_that_pays
from tagger.token_counts import TokenCounts, read_tokenizers

log = structlog.get_logger()

IN_HAND_MAX = 64
STOP_GRACE_S = 5.0
WARM_UP = ("Why is the sky blue?", "Write a long story about a fox. " * 8) * 8
"""What the model is tried with before the first request: its first calls are slow."""

EstimatorName = Literal["model", "length", "constant"]


@dataclass(frozen=True, slots=True)
class TaggerSettings:
    """What a person can choose. Checked when made; raises UsageError."""

    estimator: EstimatorName = "model"
    model: Path | None = None
    """Folder of an exported length model; None is the packaged one."""
    tokenizers: tuple[str, ...] = ()
    """Of served models, as `read_tokenizers` takes them."""
    budget_ms: float = 30.0
    """Longest wait for a turn at the model: small against a prefill, several times what a prompt
    takes."""
    threads: int = 1
    """Prompts that are estimated at once, one core each."""

    def __post_init__(self) -> None:
        if self.estimator not in get_args(EstimatorName):
            names = ", ".join(get_args(EstimatorName))
            raise UsageError(f"--estimator {self.estimator}: choose from {names}")


Estimators = ModelEstimator | SimpleEstimator
Heard = Callable[[Message], None]


async def serve_tagger(bus: Bus, settings: TaggerSettings, stop: asyncio.Event) -> None:
    """Run one tagger until `stop`."""
    median = RunningMedian()
    estimator, what, live = await asyncio.to_thread(make_estimator, settings, median)
    for heard in (median.finished, live):
        await bus.subscribe(bus.subjects.all_finished, heard)
    cancels = Cancels()
    await cancels.start(bus)
    intake = Intake(bus, estimator, cancels, stage="tagger")
    queue = WorkQueue(bus, tagger_consumer(bus.subjects), intake.handle, in_hand_max=IN_HAND_MAX)
    service = await serve(bus, "tagger", "Estimates answer lengths.", metadata=what)
    log.info("tagger_ready", **what)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(queue.run())
        await stop.wait()
        await service.stop()
        await queue.stop(STOP_GRACE_S)
    estimator.close()


def make_estimator(
    settings: TaggerSettings, median: RunningMedian
) -> tuple[Estimators, dict[str, str], Heard]:
    """The estimator that was asked for, what to tell of it, and who of it listens to ends.

    Without its model a tagger serves all the same, with the running median: requests are worth
    more than estimates. It says so in the log, in its metadata and as a gauge.
    """
    tokenizers = read_tokenizers(settings.tokenizers)
    if settings.estimator == "length":
        return _by_length(TokenCounts(tokenizers, rough_prompt_tokens))
    if settings.estimator == "constant":
        return _by_median(TokenCounts(tokenizers, rough_prompt_tokens), median, "median")
    try:
        model = LengthModel.load(settings.model)
        batch_max = batch_that_pays(model, WARM_UP)
    except Exception as error:
        # Ours where a file is missing or another than the card's, onnxruntime's where it is bad.
        log.error("length_model_missing", reason=str(error), doing="serving the running median")
        LENGTH_MODEL_LOADED.set(0)
        counts = TokenCounts(tokenizers, rough_prompt_tokens)
        return _by_median(counts, median, "median_no_model")
    LENGTH_MODEL_LOADED.set(1)
    if both_runtimes_installed():
        log.warning(
            "two_onnxruntimes_installed",
            do="uninstall onnxruntime and onnxruntime-gpu, then install one of them",
        )
    live = LiveError(model.name)
    estimator = ModelEstimator(
        model.name,
        ModelRunner(model, threads=settings.threads, batch_max=batch_max),
        TokenCounts(tokenizers, model.count_tokens),
        median,
        live,
        wait_ms=settings.budget_ms,
    )
    what = {
        "estimator": model.name,
        "providers": ",".join(model.providers),
        "batch_max": str(batch_max),
    }
    return estimator, what, live.finished


def _by_length(counts: TokenCounts) -> tuple[Estimators, dict[str, str], Heard]:
    live = LiveError(SOURCE)
    estimator = SimpleEstimator(
        counts,
        lambda question, tokens: by_prompt_length(tokens, live.correction(question.model)),
    )
    return estimator, {"estimator": SOURCE}, live.finished


def _by_median(
    counts: TokenCounts, median: RunningMedian, source: str
) -> tuple[Estimators, dict[str, str], Heard]:
    live = LiveError(source, corrects=False)
    estimator = SimpleEstimator(counts, lambda question, _: median.length(question.model, source))
    return estimator, {"estimator": source}, live.finished
