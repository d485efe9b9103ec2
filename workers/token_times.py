"""Steps of an engine that tells of none, from the times at which tokens come.

Requests that decode together get a token a step, so the median gap between the tokens of all of
them is the step's duration; a stream whose delivery was late does not matter. Nothing is learned
while somebody's prompt is being computed: how much of it a step had is not known.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import monotonic

from pipeline.messages import STEPS_REPORTED_MAX, StepSample

WINDOW_S = 0.2
"""Gaps that ended within so much time are one sample; some steps are in it."""


@dataclass(slots=True)
class _Decoding:
    """One stream since its first token."""

    context_tokens: int
    last_at: float


class TokenTimes:
    """Told of every stream's tokens. `clock` in seconds."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._decoding: dict[str, _Decoding] = {}
        self._prefilling = 0
        self._gaps_ms: list[float] = []
        self._since = clock()
        self._undisturbed = True
        """Whether nobody came, went or computed a prompt since the window began."""
        self._samples: deque[StepSample] = deque(maxlen=STEPS_REPORTED_MAX)

    def began(self, key: str) -> None:  # noqa: ARG002  the key matters from its first token on
        """A request went to the engine: its prompt is yet to be computed."""
        self._prefilling += 1
        self._disturb()

    def grew(self, key: str, tokens: int, prompt_tokens: int) -> None:
        """`tokens` more came at once; a slow reader, or the server, may have joined several."""
        now = self._clock()
        stream = self._decoding.get(key)
        if stream is None:
            self._prefilling -= 1
            self._decoding[key] = _Decoding(prompt_tokens + tokens, now)
            self._disturb()
            return
        self._gaps_ms.append((now - stream.last_at) * 1000 / tokens)
        stream.last_at = now
        stream.context_tokens += tokens
        if now - self._since >= WINDOW_S:
            self._close(now)

    def ended(self, key: str) -> None:
        """However it ended."""
        if self._decoding.pop(key, None) is None:
            self._prefilling -= 1
        self._disturb()

    def take(self) -> list[StepSample]:
        """Samples since the last call, the latest ones."""
        taken = list(self._samples)
        self._samples.clear()
        return taken

    def _disturb(self) -> None:
        self._undisturbed = False

    def _close(self, now: float) -> None:
        streams = len(self._decoding)
        if self._undisturbed and not self._prefilling and len(self._gaps_ms) >= streams:
            context = sum(stream.context_tokens for stream in self._decoding.values())
            gap_ms = median(self._gaps_ms)
            if gap_ms > 0:
                self._samples.append(StepSample(streams, 0.0, context, streams, gap_ms))
        self._gaps_ms.clear()
        self._since = now
        self._undisturbed = True
