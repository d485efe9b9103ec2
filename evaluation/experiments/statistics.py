"""Means and paired comparisons over seeds, each with its 95 % interval.

Runs of one seed share their arrivals, so what differs between them is the policy: differences and
ratios are taken seed by seed, and the interval is Student's t over these. Near saturation the
spread between seeds is as large as the differences, and an unpaired comparison would see nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, nan, sqrt

import numpy as np

CONFIDENCE = 0.95

BySeed = Mapping[int, float]
"""One figure of one policy in one setting, by seed."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds and its 95 % interval, which is NaN where there is one seed only."""

    mean: float
    low: float
    high: float


def mean_interval(values: Sequence[float]) -> Interval:
    """Student's t. Raises ValueError for no values."""
    if not values:
        raise ValueError("an interval over no values")
    mean = float(np.mean(values))
    if len(values) == 1:
        return Interval(mean, nan, nan)
    half = _t_quantile(len(values) - 1) * float(np.std(values, ddof=1)) / sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def paired_difference(ours: BySeed, theirs: BySeed) -> Interval:
    """Ours less theirs. Raises ValueError unless both have the same seeds."""
    return mean_interval([ours[seed] - theirs[seed] for seed in _shared(ours, theirs)])


def paired_ratio(ours: BySeed, theirs: BySeed) -> Interval:
    """Ours over theirs, the geometric mean: the interval is that of the ratio's logarithm.

    Raises ValueError unless both have the same seeds, and for figures that are not positive.
    """
    seeds = _shared(ours, theirs)
    if any(value <= 0 for values in (ours, theirs) for value in values.values()):
        raise ValueError("a ratio of figures that are not all positive")
    logarithm = mean_interval([log(ours[seed] / theirs[seed]) for seed in seeds])
    return Interval(exp(logarithm.mean), exp(logarithm.low), exp(logarithm.high))


def _shared(ours: BySeed, theirs: BySeed) -> list[int]:
    if ours.keys() != theirs.keys():
        raise ValueError(f"unpaired: seeds {sorted(ours)} against {sorted(theirs)}")
    return sorted(ours)


def _t_quantile(degrees: int) -> float:
    """Of the two-sided interval."""
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, degrees))
