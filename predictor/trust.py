"""How good this predictor's answers were, and what it answers when they were not.

Of every request that it answered for and that ran here it keeps what it had predicted, what a
plain estimate from the queue's length would have said at that moment, and what came. While its
error is clearly worse than the plain one's over the latest requests it is not trusted, and the
plain estimate is its answer; it goes on being judged, and is trusted again once it is clearly
better.

Only requests that were sent here are seen. They came because the prediction was low, so a part
of the bias is the winner's: it is not the bias of all that was answered.

Errors are logarithms of actual / predicted: twice as long and half as long are equally wrong, and
a standard deviation of them is what the score `slo` takes.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp, inf, isfinite, log
from statistics import fmean, median, quantiles

from pipeline.messages import Ended

PENDING_MAX = 4_096
PENDING_EXPIRES_S = 1_200.0
"""Twice the deadline that a request has by default: it went elsewhere, or its end was missed."""
LONG_RUN = 1_024
RECENT = 64
JUDGED = 128
JUDGED_MIN = 32
"""Fewer say nothing: a median of 32 errors is within some 20 % of the true one."""
VERDICT_KEPT = 64
"""Results before the verdict may change again: half of what it rests on is new then."""
DISTRUST_AT, TRUST_AT = 1.25, 0.9
"""Own median error against the plain estimate's. Between the two the verdict stays."""
ERROR_FINE = 0.05
"""A median error up to this is trusted in any case: where all requests are alike the plain estimate
is as good, but it does not see what a newcomer changes."""
FACTOR_MAX = 2.0
SPREAD_MAX = 3.0
MS_MIN = 0.01


@dataclass(frozen=True, slots=True)
class Answer:
    """What to tell a dispatcher."""

    ttft_ms: float
    e2e_ms: float
    from_queue: bool = False
    """Built from the queue's length: the simulation is not trusted at the moment."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Figures for metrics. Of actual / predicted E2E of those that ran here."""

    count: int
    """Since the start."""
    error_p50: float = 0.0
    """Of |log(actual / predicted)|, over the long run; about a share where it is small."""
    error_p90: float = 0.0
    error_p99: float = 0.0
    ttft_error_p50: float = 0.0
    """The same of the time to the first token."""
    bias: float = 0.0
    """Median logarithm over the long run: above zero, things took longer than predicted."""
    ttft_bias: float = 0.0
    drift: float = 0.0
    """The latest requests' bias less that of the long run."""
    spread: float | None = None
    """Robust standard deviation of the logarithm; None while too little was seen."""
    plain_error_p50: float = 0.0
    """What the plain estimate would have had over the latest."""
    recent_error_p50: float = 0.0
    trusted: bool = True
    verdicts: int = 0
    """Times that the verdict changed."""


@dataclass(slots=True)
class _Pending:
    at: float
    ttft_ms: float
    e2e_ms: float
    plain_ms: float | None


@dataclass
class Trust:
    """The record of one instance's predictor. Owned by one event loop."""

    clock: Callable[[], float] = time.monotonic
    trusted: bool = True
    _pending: dict[str, _Pending] = field(default_factory=dict)
    _errors: deque[float] = field(default_factory=lambda: deque(maxlen=LONG_RUN))
    _first_errors: deque[float] = field(default_factory=lambda: deque(maxlen=LONG_RUN))
    _recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=JUDGED))
    """Own and plain absolute error of those that have both."""
    _service_ms: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    _first_ms: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    _count: int = 0
    _verdicts: int = 0
    _verdict_at: int = -VERDICT_KEPT

    def answer(
        self, key: str, ttft_ms: float, e2e_ms: float, *, ahead: int, concurrency: int
    ) -> Answer:
        """Take note of a prediction, and say what the answer is.

        `ahead` are all requests on the instance and on their way to it, `concurrency` how many
        it runs at once.
        """
        plain = self.from_queue(ahead, concurrency)
        self._pending.pop(key, None)  # asked again: it becomes the newest
        if len(self._pending) >= PENDING_MAX:
            del self._pending[next(iter(self._pending))]
        if isfinite(e2e_ms) and isfinite(ttft_ms):
            self._pending[key] = _Pending(
                self.clock(), ttft_ms, e2e_ms, plain.e2e_ms if plain else None
            )
        if self.trusted or plain is None:
            return Answer(ttft_ms, e2e_ms)
        return plain

    def from_queue(self, ahead: int, concurrency: int) -> Answer | None:
        """The plain estimate: a place becomes free every service time / concurrency. None before
        anything ran here."""
        if not self._service_ms:
            return None
        service_ms = fmean(self._service_ms)
        places = max(1, concurrency)
        waits_ms = max(0, ahead + 1 - places) * service_ms / places
        first_ms = fmean(self._first_ms) if self._first_ms else 0.0
        return Answer(waits_ms + first_ms, waits_ms + service_ms, from_queue=True)

    def ended(self, ended: Ended) -> None:
        """A request left the instance. What did not run to its end is forgotten: its time says
        nothing. One cut short by its limit of tokens counts, since a prediction knows the limit.

        Its E2E is the worker's, from the inbox on. That rests on two wall clocks; no more than
        what passed here since the answer is believed.
        """
        pending = self._pending.pop(ended.key, None)
        self._drop_expired()
        if not ended.answered or ended.ttft_ms is None:
            return
        e2e_ms, ttft_ms = ended.e2e_ms, ended.ttft_ms
        if not (0 < ttft_ms <= e2e_ms < inf and 0 <= ended.waited_ms <= ttft_ms):
            return
        self._service_ms.append(max(MS_MIN, e2e_ms - ended.waited_ms))
        if ttft_ms > ended.waited_ms:
            self._first_ms.append(ttft_ms - ended.waited_ms)
        if pending is None:
            return
        since_ms = (self.clock() - pending.at) * 1000
        error = _error(min(e2e_ms, since_ms), pending.e2e_ms)
        self._count += 1
        self._errors.append(error)
        self._first_errors.append(_error(min(ttft_ms, since_ms), pending.ttft_ms))
        if pending.plain_ms is not None:
            self._recent.append((abs(error), abs(_error(min(e2e_ms, since_ms), pending.plain_ms))))
            self._judge()

    def quality(self) -> Quality:
        """As of now. Sorts what is kept: for a metrics page, not for every probe."""
        own, plain = self._medians()
        if len(self._errors) < 2:
            return Quality(self._count, trusted=self.trusted, verdicts=self._verdicts)
        of_hundred = quantiles(map(abs, self._errors), n=100, method="inclusive")
        bias = median(self._errors)
        latest = list(self._errors)[-RECENT:]
        return Quality(
            count=self._count,
            error_p50=of_hundred[49],
            error_p90=of_hundred[89],
            error_p99=of_hundred[98],
            ttft_error_p50=median(map(abs, self._first_errors)),
            bias=bias,
            ttft_bias=median(self._first_errors),
            drift=median(latest) - bias,
            spread=self.spread(),
            plain_error_p50=plain,
            recent_error_p50=own,
            trusted=self.trusted,
            verdicts=self._verdicts,
        )

    def spread(self) -> float | None:
        """Standard deviation of the logarithm about zero, from the latest errors' median, so
        that a few strays do not make it; its bias is in it, since a score does not correct it."""
        if len(self._errors) < JUDGED_MIN:
            return None
        latest = list(self._errors)[-RECENT:]
        return min(SPREAD_MAX, 1.4826 * median(map(abs, latest)))

    def factor(self) -> float:
        """What to multiply predicted times by to be right in the median; 1 until enough was seen.

        The simulation knows nobody who is yet to come, so under steady load it is too low by a
        share that grows with the load. Whether to correct is the caller's choice: what is noted
        here has to stay the simulation's own figure.
        """
        if len(self._errors) < JUDGED_MIN:
            return 1.0
        factor = exp(median(list(self._errors)[-RECENT:]))
        return min(max(factor, 1 / FACTOR_MAX), FACTOR_MAX)

    def _judge(self) -> None:
        if len(self._recent) < JUDGED_MIN or self._count < self._verdict_at + VERDICT_KEPT:
            return
        own, plain = self._medians()
        bound = plain * (DISTRUST_AT if self.trusted else TRUST_AT)
        trusted = own <= max(ERROR_FINE, bound)
        if trusted is not self.trusted:
            self.trusted = trusted
            self._verdicts += 1
            self._verdict_at = self._count

    def _medians(self) -> tuple[float, float]:
        """The latest requests' own and plain error."""
        if not self._recent:
            return 0.0, 0.0
        return median(own for own, _ in self._recent), median(plain for _, plain in self._recent)

    def _drop_expired(self) -> None:
        before = self.clock() - PENDING_EXPIRES_S
        while self._pending:
            oldest = next(iter(self._pending))
            if self._pending[oldest].at >= before:
                return
            del self._pending[oldest]


def _error(actual_ms: float, predicted_ms: float) -> float:
    return log(max(MS_MIN, actual_ms) / max(MS_MIN, predicted_ms))
