"""Predictions beside what happened: of all requests, and of those that nobody disturbed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

APART_SHARE = 0.10
"""Two places that came out nearer than this are none that one could choose between."""


@dataclass(frozen=True, slots=True)
class Times:
    """Of one request, in ms, from the moment of its placing."""

    ttft_ms: float
    e2e_ms: float


@dataclass(frozen=True, slots=True)
class Run:
    """One request on one instance."""

    predicted: Times
    actual: Times
    preemptions: int
    disturbed: bool
    """Others were placed on its instance while it was there: nothing could know of them."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One request, run on both instances at once."""

    first: Run
    second: Run


@dataclass(frozen=True, slots=True)
class Errors:
    """Shares of what really came."""

    requests: int
    ttft_error_median: float
    ttft_error_p90: float
    e2e_error_median: float
    e2e_error_p90: float
    e2e_bias: float
    """Median of predicted over actual, less one."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of all requests at one load."""

    preemptions: int
    all: Errors
    undisturbed: Errors | None
    """None where there is none."""
    pairs: int
    """Run on both, and more than APART_SHARE apart in E2E."""
    pairs_right: int
    """Of those, the one that was predicted as quicker was quicker."""


def judge(runs: Sequence[Run], pairs: Sequence[Pair]) -> Verdict:
    """Raises ValueError where nothing was run."""
    apart = [pair for pair in pairs if _apart(pair)]
    calm = [run for run in runs if not run.disturbed]
    return Verdict(
        preemptions=sum(run.preemptions for run in runs),
        all=errors(runs),
        undisturbed=errors(calm) if calm else None,
        pairs=len(apart),
        pairs_right=sum(_right(pair) for pair in apart),
    )


def errors(runs: Sequence[Run]) -> Errors:
    """Raises ValueError where nothing was run."""
    if not runs:
        raise ValueError("nothing was run")
    ttft = _errors(runs, lambda times: times.ttft_ms)
    e2e = _errors(runs, lambda times: times.e2e_ms)
    return Errors(
        requests=len(runs),
        ttft_error_median=float(np.median(np.abs(ttft))),
        ttft_error_p90=float(np.quantile(np.abs(ttft), 0.9)),
        e2e_error_median=float(np.median(np.abs(e2e))),
        e2e_error_p90=float(np.quantile(np.abs(e2e), 0.9)),
        e2e_bias=float(np.median(e2e)),
    )


def _errors(
    runs: Sequence[Run], of: Callable[[Times], float]
) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.array([of(run.predicted) / of(run.actual) - 1 for run in runs], dtype=np.float64)


def _apart(pair: Pair) -> bool:
    first, second = pair.first.actual.e2e_ms, pair.second.actual.e2e_ms
    return abs(first - second) > APART_SHARE * min(first, second)


def _right(pair: Pair) -> bool:
    predicted = pair.first.predicted.e2e_ms - pair.second.predicted.e2e_ms
    actual = pair.first.actual.e2e_ms - pair.second.actual.e2e_ms
    return predicted * actual > 0
