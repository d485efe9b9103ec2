"""What an estimator is, and the one that needs no model: the running median.

The tagger's estimator is a model (tagger/); the median here serves where no tagger is alive.
"""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pipeline.bus import Message
from pipeline.messages import LengthEstimate
from pipeline.subjects import Header

BYTES_PER_TOKEN = 4.0  # English text under common tokenizers; only used without a tokenizer
REMEMBERED_MAX = 1_000
RECOMPUTE_EVERY = 20
PRIOR_TOKENS = (50.0, 250.0, 550.0)  # p10, p50, p90 of chat answers, until answers were seen


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a stage learned of a prompt."""

    prompt_tokens: int
    length: LengthEstimate
    took_ms: float = 0.0
    """Time in the model and in its queue."""


class Estimator(Protocol):
    """Says how long an answer will be. Never fails: without a better idea it falls back."""

    async def estimate(self, prompt: str) -> Estimate: ...


def rough_prompt_tokens(prompt: str) -> int:
    """Token count without a tokenizer."""
    return max(1, round(len(prompt.encode("utf-8", "replace")) / BYTES_PER_TOKEN))


class RunningMedian:
    """Quantiles of the last answers' lengths, read off the headers on `finished.…`."""

    def __init__(self) -> None:
        self._lengths: deque[int] = deque(maxlen=REMEMBERED_MAX)
        self._quantiles = PRIOR_TOKENS
        self._seen = 0

    def finished(self, message: Message) -> None:
        """Take note of one result."""
        tokens = message.headers.get(Header.COMPLETION_TOKENS, "")
        if not tokens.isdecimal() or message.headers.get(Header.STATUS) != "done":
            return
        self._lengths.append(int(tokens))
        self._seen += 1
        if self._seen % RECOMPUTE_EVERY == 0:
            p10, p50, p90 = np.quantile(self._lengths, (0.1, 0.5, 0.9))
            self._quantiles = (float(p10), float(p50), float(p90))

    def length(self, source: str = "median") -> LengthEstimate:
        p10, p50, p90 = self._quantiles
        return LengthEstimate(p10=p10, p50=p50, p90=p90, source=source)

    async def estimate(self, prompt: str) -> Estimate:
        return Estimate(rough_prompt_tokens(prompt), self.length())
