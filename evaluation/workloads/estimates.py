"""What a tagger would say of each request: nothing but the truth, or the truth with an error.

`calibrated` is the one to compare policies with: it is as good as a real length model and knows as
well as one how good it is. The paper's noise is here to repeat its figures; a point estimate that
is wrong and sure of itself is no tagger of ours.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import pi, sin, sqrt
from statistics import NormalDist
from typing import Protocol

import numpy as np

from evaluation.workloads.lengths import EstimateTable, Floats, LengthTable
from pipeline.errors import UsageError

TAGGER_LIKE_SPEARMAN = 0.55
"""Of the shipped length model with the true lengths of first turns (tagger/model/README.md)."""
NOISE_FACTOR_MIN, NOISE_FACTOR_MAX = 0.1, 5.0  # the paper's clamp
PERCENT_MAX = 1_000.0
SIGMA_MAX = 5.0
_NORMAL = NormalDist()
_QUANTILES = (0.1, 0.5, 0.9)
_Z = np.array([_NORMAL.inv_cdf(q) for q in _QUANTILES])


class Estimates(Protocol):
    """One way to estimate."""

    def estimate(
        self, rows: LengthTable, population: LengthTable, rng: np.random.Generator
    ) -> EstimateTable:
        """The estimate of each of the rows. `population` is what the rows were taken from: the
        lengths that a model was trained on."""
        ...


@dataclass(frozen=True, slots=True)
class Oracle:
    """The truth, three times."""

    def estimate(
        self, rows: LengthTable, population: LengthTable, rng: np.random.Generator
    ) -> EstimateTable:
        return _point(rows.response_tokens.astype(np.float64), "oracle")


@dataclass(frozen=True, slots=True)
class Noise:
    """The paper's: the truth times 1 + N(0, percent / 100), the factor clamped to 0.1 … 5.

    A point estimate, as the paper's: all three quantiles are equal, whatever the error.
    """

    percent: float

    def estimate(
        self, rows: LengthTable, population: LengthTable, rng: np.random.Generator
    ) -> EstimateTable:
        factor = 1 + self.percent / 100 * rng.standard_normal(len(rows))
        noisy = rows.response_tokens * factor.clip(NOISE_FACTOR_MIN, NOISE_FACTOR_MAX)
        return _point(noisy, f"noise:{self.percent:g}")


@dataclass(frozen=True, slots=True)
class LogNormal:
    """The truth times e^(sigma·N(0, 1)), with quantiles as wide as that error is.

    Honest on average: the truth lies below p10 once in ten times, and above p90 too. But it knows
    nothing of which lengths are usual, so it calls long ones longer than any is.
    """

    sigma: float

    def estimate(
        self, rows: LengthTable, population: LengthTable, rng: np.random.Generator
    ) -> EstimateTable:
        middle = np.log(rows.response_tokens) + self.sigma * rng.standard_normal(len(rows))
        quantiles = np.exp(middle[:, None] + self.sigma * _Z)
        return EstimateTable(np.maximum(quantiles, 1.0), f"lognormal:{self.sigma:g}")


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A length model whose medians have this rank correlation with the truth.

    The model sees, through noise, the length's normal score z (the standard normal number with the
    length's rank in the population): s = c·z + √(1-c²)·N(0, 1). Given s, z is N(c·s, 1-c²), and the
    quantiles of that, taken back to tokens through the population's distribution, are the
    estimate: the exact posterior, so the truth is below p10, p50, p90 in 10, 50, 90 of 100 cases
    by construction, whatever the lengths look like. Where they are log-normal this is a noisy look
    at the length's logarithm. c = 2·sin(π·r/6) gives z and s the rank correlation r (Pearson's
    relation between the two coefficients of a bivariate normal). At 0 everybody gets the
    population's quantiles: a running median.
    """

    spearman: float

    def estimate(
        self, rows: LengthTable, population: LengthTable, rng: np.random.Generator
    ) -> EstimateTable:
        known = population.response_sorted
        first = np.searchsorted(known, rows.response_tokens, side="left")
        last = np.searchsorted(known, rows.response_tokens, side="right")
        # Equal lengths share a range of ranks: anywhere in it, so that ranks are uniform.
        for_ties, for_noise = rng.spawn(2)  # one stream each: more rows must not shift the other
        rank = (first + for_ties.random(len(rows)) * (last - first)) / len(known)
        tiny = 0.25 / len(known)  # a normal score is infinite at the ends
        score = np.array([_NORMAL.inv_cdf(r) for r in rank.clip(tiny, 1 - tiny).tolist()])
        c = 2 * sin(pi * self.spearman / 6)
        spread = sqrt(1 - c**2)
        seen = c * score + spread * for_noise.standard_normal(len(rows))
        levels = c * seen[:, None] + spread * _Z
        shares = np.array([_NORMAL.cdf(z) for z in levels.ravel().tolist()])
        quantiles = np.quantile(known, shares).reshape(-1, 3)
        return EstimateTable(quantiles, f"calibrated:{self.spearman:g}")


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a length model really said, where the table has kept it."""

    def estimate(
        self, rows: LengthTable, population: LengthTable, rng: np.random.Generator
    ) -> EstimateTable:
        if rows.estimates is None:
            raise UsageError(
                f"estimates recorded: {rows.name} has none beside its lengths; "
                "sharegpt-tagged and the bus's own results have"
            )
        return rows.estimates


def _point(tokens: Floats, source: str) -> EstimateTable:
    return EstimateTable(np.repeat(np.maximum(tokens, 1.0)[:, None], 3, axis=1), source)


_WITHOUT_PARAMETER: dict[str, Estimates] = {
    "oracle": Oracle(),
    "recorded": Recorded(),
    "tagger-like": Calibrated(TAGGER_LIKE_SPEARMAN),
}
_WITH_PARAMETER: dict[str, tuple[Callable[[float], Estimates], float]] = {
    "noise": (Noise, PERCENT_MAX),
    "lognormal": (LogNormal, SIGMA_MAX),
    "calibrated": (Calibrated, 1.0),
}
ESTIMATES = {
    "oracle": "the true length",
    "tagger-like": f"calibrated:{TAGGER_LIKE_SPEARMAN:g}, as good as the shipped length model",
    "calibrated:R": "honest quantiles whose median has rank correlation R with the truth",
    "lognormal:SIGMA": "the truth times a log-normal error, with quantiles that wide",
    "noise:PERCENT": "the paper's: the truth times 1 + N(0, PERCENT / 100), as a point",
    "recorded": "what a length model said, kept beside the lengths",
}
"""Every name that `parse_estimates` takes, with one line."""


def parse_estimates(name: str) -> Estimates:
    """The estimates of this name. Raises UsageError with the names there are, or the limit."""
    if name in _WITHOUT_PARAMETER:
        return _WITHOUT_PARAMETER[name]
    kind, _, text = name.partition(":")
    if kind not in _WITH_PARAMETER:
        raise UsageError(f"estimates {name!r}: not one of {', '.join(ESTIMATES)}")
    make, most = _WITH_PARAMETER[kind]
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"estimates {name!r}: a number must follow {kind}:") from None
    if not 0 <= value <= most:
        raise UsageError(f"estimates {name!r}: the number must be 0 to {most:g}")
    return make(value)
