"""How often the lower prediction was the better place, from decisions whose candidates were all run
in copies of their instances."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from evaluation.world.clones import Lived

FAR = 1.1
"""Two E2E that differ by this factor or more are a choice that matters."""


def pairwise_figures(lived: Sequence[Lived]) -> dict[str, float]:
    """Over all pairs of candidates of one decision, with different E2E. Those that are far
    apart may be none, so they are counted; `right_by_…` are shares from 0 to 1. A tie in what one
    would choose by is half right. Raises ValueError for no pairs.

    `regret_ms` is what the chosen candidate's E2E was above the best one's, on average.
    """
    by_job: dict[int, list[Lived]] = {}
    for one in lived:
        by_job.setdefault(one.job, []).append(one)
    pairs = [
        pair
        for candidates in by_job.values()
        for pair in combinations(candidates, 2)
        if pair[0].e2e_ms != pair[1].e2e_ms
    ]
    if not pairs:
        raise ValueError("no decision with two candidates was cloned: more requests, or k = 2")
    far = [pair for pair in pairs if max(_e2e(pair)) >= FAR * min(_e2e(pair))]
    error = np.array([(one.predicted_e2e_ms - one.e2e_ms) / one.e2e_ms for one in lived])
    return {
        "pairs": float(len(pairs)),
        "pairs_far": float(len(far)),
        "right_by_prediction": _right(pairs, "predicted_e2e_ms") / len(pairs),
        "right_by_cost": _right(pairs, "cost") / len(pairs),
        "right_by_in_flight": _right(pairs, "in_flight") / len(pairs),
        "far_right_by_prediction": _right(far, "predicted_e2e_ms"),
        "far_right_by_in_flight": _right(far, "in_flight"),
        "regret_ms": float(np.mean([_regret_ms(c) for c in by_job.values()])),
        "clone_error_median": float(np.median(np.abs(error))),
        "clone_bias_median": float(np.median(error)),
    }


def _e2e(pair: tuple[Lived, Lived]) -> tuple[float, float]:
    return pair[0].e2e_ms, pair[1].e2e_ms


def _right(pairs: Sequence[tuple[Lived, Lived]], by: str) -> float:
    """In how many of them the lower `by` has the lower E2E."""
    right = 0.0
    for one, other in pairs:
        difference = getattr(one, by) - getattr(other, by)
        right += 0.5 if difference == 0 else (difference < 0) == (one.e2e_ms < other.e2e_ms)
    return right


def _regret_ms(candidates: Sequence[Lived]) -> float:
    best = min(one.e2e_ms for one in candidates)
    return next(one.e2e_ms for one in candidates if one.chosen) - best
