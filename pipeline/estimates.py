"""What an estimator is, and the one that needs no model: the running median.

The tagger's estimator is a model (tagger/); the median here serves where no tagger is alive.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pipeline.bus import Message
from pipeline.messages import LengthEstimate, Request
from pipeline.subjects import Header

BYTES_PER_TOKEN = 4.0  # English text under common tokenizers; only used without a tokenizer
REMEMBERED_MAX = 1_000  # answers of one model
MODELS_MAX = 64
RECOMPUTE_EVERY = 20
PRIOR_TOKENS = (50.0, 250.0, 550.0)  # p10, p50, p90 of chat answers, until answers were seen


@dataclass(frozen=True, slots=True)
class Question:
    """What an estimator is asked about."""

    request: Request
    prompt: str
    """All that the engine reads, as text."""
    model: str
    """Slug of the served model."""

    @property
    def known_tokens(self) -> int | None:
        """The answer's length where the request itself fixes it."""
        return self.request.max_tokens if self.request.ignore_eos else None


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a stage learned of a prompt."""

    prompt_tokens: int
    length: LengthEstimate
    took_ms: float = 0.0
    """Time in the model and in its queue."""


class Estimator(Protocol):
    """Says how long an answer will be. Never fails: without a better idea it falls back."""

    async def estimate(self, question: Question) -> Estimate: ...


def rough_prompt_tokens(prompt: str) -> int:
    """Token count without a tokenizer."""
    return max(1, round(len(prompt.encode("utf-8", "replace")) / BYTES_PER_TOKEN))


class _Recent:
    """The last answers of one model."""

    def __init__(self) -> None:
        self._lengths: deque[int] = deque(maxlen=REMEMBERED_MAX)
        self.seen = 0
        self.quantiles = PRIOR_TOKENS

    def add(self, tokens: int) -> None:
        self._lengths.append(tokens)
        self.seen += 1
        if self.seen % RECOMPUTE_EVERY == 0:
            p10, p50, p90 = np.quantile(self._lengths, (0.1, 0.5, 0.9))
            self.quantiles = (float(p10), float(p50), float(p90))


class RunningMedian:
    """Quantiles of each model's last answers, read off the headers on `finished.…`; of everybody's
    answers for a model that has given few."""

    def __init__(self) -> None:
        self._all = _Recent()
        self._models: OrderedDict[str, _Recent] = OrderedDict()

    def finished(self, message: Message) -> None:
        """Take note of one result."""
        tokens = message.headers.get(Header.COMPLETION_TOKENS, "")
        if not tokens.isdecimal() or message.headers.get(Header.STATUS) != "done":
            return
        self._all.add(int(tokens))
        if model := message.headers.get(Header.MODEL):
            self._of(model).add(int(tokens))

    def length(self, model: str, source: str = "median") -> LengthEstimate:
        own = self._models.get(model)
        p10, p50, p90 = (own if own and own.seen >= RECOMPUTE_EVERY else self._all).quantiles
        return LengthEstimate(p10=p10, p50=p50, p90=p90, source=source)

    async def estimate(self, question: Question) -> Estimate:
        return Estimate(rough_prompt_tokens(question.prompt), self.length(question.model))

    def _of(self, model: str) -> _Recent:
        recent = self._models.setdefault(model, _Recent())
        self._models.move_to_end(model)
        if len(self._models) > MODELS_MAX:
            self._models.popitem(last=False)
        return recent
