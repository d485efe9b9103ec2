"""When requests arrive: gamma gaps, or recorded time stamps. Milliseconds from the start."""

import numpy as np

from evaluation.workloads.lengths import Floats
from pipeline.errors import UsageError

REQUESTS_MAX = 10_000_000
"""Of one workload; a duration with a rate beyond it is a slip of the pen."""
GAPS_DRAWN_AT_ONCE = 1_024


def gamma_arrivals(
    rng: np.random.Generator,
    *,
    rate: float,
    burstiness: float = 1.0,
    requests: int | None = None,
    duration_ms: float | None = None,
) -> Floats:
    """Arrival times whose gaps are gamma distributed with shape `burstiness` and scale
    1 / (rate·burstiness) seconds, as in the paper's evaluation: the mean rate is `rate` requests
    per second whatever the burstiness b, the gaps' coefficient of variation 1/√b. 1 is Poisson;
    less is burstier.

    Ends after `requests` arrivals or before the first one past `duration_ms`, whichever is sooner.
    The random numbers do not depend on the rate, so that one seed gives the same pattern, faster
    or slower. Raises UsageError.
    """
    _positive("rate", rate)
    _positive("burstiness", burstiness)
    most = _limit(requests, duration_ms)
    scale_ms = 1_000 / (rate * burstiness)
    drawn: list[Floats] = []
    count, now_ms = 0, 0.0
    while count < most and (duration_ms is None or now_ms <= duration_ms):
        gaps = rng.standard_gamma(burstiness, min(GAPS_DRAWN_AT_ONCE, most - count)) * scale_ms
        times = now_ms + np.cumsum(gaps)
        drawn.append(times)
        count, now_ms = count + len(times), float(times[-1])
    if requests is None and count >= REQUESTS_MAX:
        raise UsageError(f"duration_ms: more than {REQUESTS_MAX} requests at rate {rate:g}")
    return truncated(np.concatenate(drawn), duration_ms=duration_ms)


def recorded_arrivals(
    at_ms: Floats, *, speed: float | None = None, rate: float | None = None
) -> Floats:
    """Recorded time stamps from 0 on: as they are, `speed` times as fast, or at a mean `rate` in
    requests per second. The gaps keep their proportions. Raises UsageError.
    """
    if speed is not None and rate is not None:
        raise UsageError("speed and rate: give one of the two")
    times: Floats = at_ms - at_ms[0]
    if rate is not None:
        _positive("rate", rate)
        if len(times) == 1:  # no gap, so no pace
            return times
        if times[-1] == 0:
            raise UsageError("rate: the recorded requests all came at the same instant")
        speed = rate / ((len(times) - 1) / (times[-1] / 1_000))
    if speed is None:
        return times
    _positive("speed", speed)
    times /= speed
    return times


def truncated(at_ms: Floats, *, duration_ms: float | None) -> Floats:
    """The times up to `duration_ms`; all of them for None."""
    return at_ms if duration_ms is None else at_ms[at_ms <= duration_ms]


def _positive(title: str, value: float) -> None:
    if not (0 < value < float("inf")):
        raise UsageError(f"{title}: {value:g} given, must be above 0 and finite")


def _limit(requests: int | None, duration_ms: float | None) -> int:
    if requests is None and duration_ms is None:
        raise UsageError("requests or duration_ms: one of the two must be given")
    if duration_ms is not None:
        _positive("duration_ms", duration_ms)
    if requests is None:
        return REQUESTS_MAX
    if not 1 <= requests <= REQUESTS_MAX:
        raise UsageError(f"requests: {requests} given, must be 1 to {REQUESTS_MAX}")
    return requests
