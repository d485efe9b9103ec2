"""The length model on threads of its own, off the event loop: one prompt at a time, or those of
like length that wait together where that is faster.

On a CPU a batch is no faster than its parts; on a GPU it is. Which it is here is measured
(`batch_that_pays`), and a batch is used only where it also changes no estimate: with scales taken
over a whole batch, as dynamic int8 does, prompts would change each other's.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pipeline.estimates import Question
from pipeline.messages import ChatMessage
from tagger.model import Reading

BATCH_MAX = 16
WAITING_MAX = 1_024
PAYS_BELOW = 0.7
"""A batch is used where it takes less than this of its parts' time."""
SAME_WITHIN = 1e-3
"""Relative; the order of sums alone makes 1e-6."""
TRIALS = 3
LENGTH_UNIT_CHARS = 256
"""Prompts whose lengths have the same number of binary digits in this unit share a batch."""
COMPUTE_S_MAX = 1.0
"""A started prompt is waited for; a model that hangs is not."""

Quantiles = tuple[float, float, float]


class TooLate(Exception):
    """The prompt's turn did not come in time."""


class Model(Protocol):
    """What of a LengthModel is needed here."""

    def read(self, prompt: str) -> Reading: ...
    def read_chat(self, messages: Sequence[ChatMessage]) -> Reading: ...
    def estimate(self, readings: Sequence[Reading]) -> npt.NDArray[np.float64]: ...


@dataclass(eq=False, slots=True)
class _Job:
    question: Question
    answer: asyncio.Future[tuple[int, Quantiles]]
    started: bool = False

    @property
    def size_class(self) -> int:
        return (len(self.question.prompt) // LENGTH_UNIT_CHARS).bit_length()


class ModelRunner:
    """Owned by one event loop. With a `batch_max` of 1 every prompt is a call of its own."""

    def __init__(self, model: Model, *, threads: int = 1, batch_max: int = 1) -> None:
        self._model = model
        self._batch_max = batch_max
        self._idle = threads
        self._closed = False
        self._waiting: deque[_Job] = deque()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="length")

    async def estimate(self, question: Question, *, wait_s: float) -> tuple[int, Quantiles]:
        """Prompt tokens, and quantiles of the answer's.

        Raises TooLate where the model has not begun with it within `wait_s`, or does not come to
        an end; what the model raises goes through.
        """
        if len(self._waiting) >= WAITING_MAX:
            raise TooLate
        job = _Job(question, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        self._begin()
        await asyncio.wait([job.answer], timeout=wait_s)
        if not job.started:
            self._waiting.remove(job)
            raise TooLate
        await asyncio.wait([job.answer], timeout=COMPUTE_S_MAX)
        if not job.answer.done():
            raise TooLate
        return job.answer.result()

    def close(self) -> None:
        """Who still waits gets TooLate when its time is over."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        while self._idle and self._waiting and not self._closed:
            jobs = self._next()
            self._idle -= 1
            questions = [job.question for job in jobs]
            call = asyncio.get_running_loop().run_in_executor(
                self._pool, _compute, self._model, questions
            )
            call.add_done_callback(partial(self._ended, jobs))

    def _next(self) -> list[_Job]:
        """The one that waits longest, and as many of its size as fit."""
        first = self._waiting[0]
        if self._batch_max == 1:
            jobs = [first]
        else:
            like = (job for job in self._waiting if job.size_class == first.size_class)
            jobs = [job for job, _ in zip(like, range(self._batch_max), strict=False)]
        for job in jobs:
            self._waiting.remove(job)
            job.started = True
        return jobs

    def _ended(
        self, jobs: Sequence[_Job], call: asyncio.Future[list[tuple[int, Quantiles]]]
    ) -> None:
        self._idle += 1
        error = asyncio.CancelledError() if call.cancelled() else call.exception()
        for number, job in enumerate(jobs):
            if job.answer.done():
                continue
            if isinstance(error, asyncio.CancelledError):
                job.answer.cancel()
            elif error is not None:
                job.answer.set_exception(error)
                job.answer.exception()  # its asker may have left: nobody need read it
            else:
                job.answer.set_result(call.result()[number])
        self._begin()


def _compute(model: Model, questions: Sequence[Question]) -> list[tuple[int, Quantiles]]:
    """On a model thread."""
    readings = [_read(model, question) for question in questions]
    quantiles = model.estimate(readings)
    return [
        (reading.prompt_tokens, (float(p10), float(p50), float(p90)))
        for reading, (p10, p50, p90) in zip(readings, quantiles, strict=True)
    ]


def _read(model: Model, question: Question) -> Reading:
    messages = question.request.messages
    return model.read(question.prompt) if messages is None else model.read_chat(messages)


def batch_that_pays(model: Model, prompts: Sequence[str]) -> int:
    """The batch size to run this model with on this machine: BATCH_MAX or 1, by measurement."""
    readings = [model.read(prompt) for prompt in prompts[:BATCH_MAX]]

    def alone() -> npt.NDArray[np.float64]:
        return np.concatenate([model.estimate([reading]) for reading in readings])

    def together() -> npt.NDArray[np.float64]:
        return model.estimate(readings)

    if not np.allclose(alone(), together(), rtol=SAME_WITHIN):
        return 1
    took = {}
    for way in (alone, together):
        trials = []
        for _ in range(TRIALS):
            started = time.perf_counter()
            way()
            trials.append(time.perf_counter() - started)
        took[way] = min(trials)
    return BATCH_MAX if took[together] < PAYS_BELOW * took[alone] else 1
