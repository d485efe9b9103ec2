"""Capacity: the highest rate at which P99 TTFT keeps its SLO, read off a grid of rates.

P99 TTFT grows about exponentially with the rate near the knee, so its logarithm is interpolated
linearly between the last rate before the SLO is first broken and the one that breaks it. A grid
that is kept throughout tells only that the capacity is at least its last rate, and one that is
broken throughout that it is at most its first: such a value is a *bound*, and said to be one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import Literal

from evaluation.experiments.statistics import BySeed, Interval, mean_interval

Bound = Literal["exact", "at least", "at most", "untold"]
"""Untold: some seeds give the one bound and some the other."""
SLO_MS = (3_000.0, 10_000.0)
"""Of P99 TTFT: the paper's first and second version."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where one seed's curve crosses the SLO."""

    rate: float
    bound: Bound = "exact"


def crossing(p99_by_rate: Mapping[float, float], slo_ms: float) -> Crossing:
    """Of a curve of P99 TTFT in ms over requests a second. Raises ValueError without rates."""
    rates = sorted(p99_by_rate)
    if not rates:
        raise ValueError("a capacity from no rates")
    if p99_by_rate[rates[0]] > slo_ms:
        return Crossing(rates[0], "at most")
    for lower, upper in pairwise(rates):
        below, above = p99_by_rate[lower], p99_by_rate[upper]
        if above > slo_ms:
            share = log(slo_ms / below) / log(above / below)
            return Crossing(lower + share * (upper - lower))
    return Crossing(rates[-1], "at least")


@dataclass(frozen=True, slots=True)
class Capacity:
    """Over seeds. Where some seeds give a bound only, the mean counts the bound, and is one."""

    interval: Interval
    by_seed: BySeed
    bound: Bound = "exact"
    bounded: int = 0
    """How many seeds gave no more than a bound."""


def capacity(p99_by_seed: Mapping[int, Mapping[float, float]], slo_ms: float) -> Capacity:
    """From a curve for every seed. Raises ValueError for no seeds."""
    crossings = {seed: crossing(curve, slo_ms) for seed, curve in p99_by_seed.items()}
    by_seed = {seed: found.rate for seed, found in crossings.items()}
    bounds: list[Bound] = [c.bound for c in crossings.values() if c.bound != "exact"]
    bound: Bound = "exact"
    if bounds:
        bound = bounds[0] if len(set(bounds)) == 1 else "untold"
    return Capacity(mean_interval(list(by_seed.values())), by_seed, bound, len(bounds))
