"""The frame of all rules that look at how loaded the instances are, and at no forecast.

The rule is a formula, in a file of its own; lower is better. The load is that of the instance's
predictor, so it includes what is on its way there: no rule here sees a stale count.
"""

import random
from collections.abc import Callable, Mapping, Sequence

from pipeline.messages import Load, Prediction, Probe
from pipeline.policies.base import Choice, Needs, Target, by_cost, some_of

Formula = Callable[[Load, Probe], float]


class ByLoad:
    """All instances, or `of` at random, are asked for their load; the lowest by `formula` wins."""

    needs: Needs = "load"

    def __init__(
        self, name: str, formula: Formula, rng: random.Random, *, of: int | None = None
    ) -> None:
        self.name = name if of is None else f"{name}:{of}"
        self._formula = formula
        self._rng = rng
        self._of = of

    def shortlist(self, targets: Sequence[Target]) -> Sequence[Target]:
        return some_of(targets, self._of, self._rng)

    def choose(
        self, shortlist: Sequence[Target], predictions: Mapping[str, Prediction], probe: Probe
    ) -> Choice:
        costs = {
            name: self._formula(answer.load, probe)
            for name, answer in predictions.items()
            if answer.load is not None
        }
        return by_cost(shortlist, costs, self._rng, "lowest load")
