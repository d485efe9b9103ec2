"""Fewest requests in flight, of all instances or of a few at random (what Ray Serve does)."""

import random
from collections.abc import Mapping, Sequence

from pipeline.messages import Prediction
from pipeline.policies.base import Choice, Target, by_in_flight


class LeastOutstanding:
    needs_probe = False

    def __init__(self, rng: random.Random, *, of: int | None = None) -> None:
        self._rng = rng
        self._of = of
        self.name = "least_outstanding" if of is None else "least_outstanding_of_two"

    def shortlist(self, targets: Sequence[Target]) -> Sequence[Target]:
        if self._of is None:
            return targets
        return self._rng.sample(targets, min(self._of, len(targets)))

    def choose(self, shortlist: Sequence[Target], predictions: Mapping[str, Prediction]) -> Choice:
        return Choice(by_in_flight(shortlist, self._rng), "fewest in flight")
