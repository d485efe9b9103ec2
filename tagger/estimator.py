"""The tagger's estimators: the length model with everything that keeps it from holding anyone up,
and what serves without it.

A request whose length is known asks nobody. A prompt that was asked about lately is answered from
memory, and one that is being computed is not computed twice. What the model cannot do in time goes
on with the running median, and says so.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable

import structlog

from pipeline.estimates import Estimate, Question, RunningMedian
from pipeline.messages import LengthEstimate
from pipeline.metrics import LENGTH_ANSWERS, LENGTH_SECONDS
from tagger.live_error import LiveError
from tagger.runner import ModelRunner, Quantiles, TooLate
from tagger.token_counts import TokenCounts

log = structlog.get_logger()

REMEMBERED_MAX = 10_000
"""Prompts, as hashes with what was said of them: about 3 MB."""

Answer = tuple[int, Quantiles]
Guess = Callable[[Question, int], LengthEstimate]
"""From a question and its prompt's tokens."""


class SimpleEstimator:
    """Estimates without a model."""

    def __init__(self, counts: TokenCounts, guess: Guess) -> None:
        self._counts = counts
        self._guess = guess

    async def estimate(self, question: Question) -> Estimate:
        started = time.perf_counter()
        tokens = await self._counts.count(question)
        length = known_length(question) or self._guess(question, tokens)
        return Estimate(tokens, length, _ms_since(started))

    def close(self) -> None:
        self._counts.close()


class ModelEstimator:
    """Estimates by the length model called `name`. A prompt waits at most `wait_ms` for its turn;
    `remembered_max` of 0 remembers none."""

    def __init__(
        self,
        name: str,
        runner: ModelRunner,
        counts: TokenCounts,
        median: RunningMedian,
        live: LiveError,
        *,
        wait_ms: float,
        remembered_max: int = REMEMBERED_MAX,
    ) -> None:
        self._name = name
        self._runner = runner
        self._counts = counts
        self._median = median
        self._live = live
        self._wait_s = wait_ms / 1000
        self._remembered_max = remembered_max
        self._remembered: OrderedDict[bytes, Answer] = OrderedDict()
        self._under_way: dict[bytes, asyncio.Task[Answer]] = {}

    async def estimate(self, question: Question) -> Estimate:
        """Never fails, and never takes much longer than its limit."""
        started = time.perf_counter()
        if length := known_length(question):
            return Estimate(await self._counts.count(question), length, _ms_since(started))
        tokens: int | None = None
        try:
            tokens, quantiles = await self._ask(question)
            length = self._corrected(quantiles, question.model)
        except TooLate:
            length = self._median.length(question.model, "median_late")
        except Exception:  # whatever a model file makes onnxruntime raise
            log.exception("length_model_failed")
            length = self._median.length(question.model, "median_broken")
        if tokens is None or self._counts.exact(question.model):
            tokens = await self._counts.count(question)
        LENGTH_SECONDS.observe(time.perf_counter() - started)
        return Estimate(tokens, length, _ms_since(started))

    def close(self) -> None:
        self._runner.close()
        self._counts.close()

    async def _ask(self, question: Question) -> Answer:
        """From memory, from whoever asks the same just now, or from the model."""
        key = _key(question)
        if (answer := self._remembered.get(key)) is not None:
            self._remembered.move_to_end(key)
            LENGTH_ANSWERS.labels("remembered").inc()
            return answer
        task = self._under_way.get(key)
        LENGTH_ANSWERS.labels("computed" if task is None else "shared").inc()
        if task is None:
            task = asyncio.create_task(self._runner.estimate(question, wait_s=self._wait_s))
            self._under_way[key] = task
            task.add_done_callback(lambda task: self._computed(key, task))
        # Shielded: one asker that is cancelled takes the answer from nobody else.
        return await asyncio.shield(task)

    def _computed(self, key: bytes, task: "asyncio.Task[Answer]") -> None:
        del self._under_way[key]
        if task.cancelled() or task.exception() is not None or not self._remembered_max:
            return
        self._remembered[key] = task.result()
        if len(self._remembered) > self._remembered_max:
            self._remembered.popitem(last=False)

    def _corrected(self, quantiles: Quantiles, model: str) -> LengthEstimate:
        factor = self._live.correction(model)
        p10, p50, p90 = (value * factor for value in quantiles)
        return LengthEstimate(p10=p10, p50=p50, p90=p90, source=self._name, correction=factor)


def known_length(question: Question) -> LengthEstimate | None:
    """Of an answer whose request fixes its length."""
    if question.known_tokens is None:
        return None
    tokens = float(question.known_tokens)
    return LengthEstimate(p10=tokens, p50=tokens, p90=tokens, source="ignore_eos")


def _key(question: Question) -> bytes:
    """Of what the model reads: a chat with the same text as a bare prompt is another question."""
    kind = b"prompt" if question.request.messages is None else b"chat"
    text = question.prompt.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16, key=kind).digest()


def _ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1000
