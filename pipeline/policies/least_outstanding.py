"""Fewest requests in flight, of all instances or of a few at random (what Ray Serve does)."""

import random
from collections.abc import Mapping, Sequence

from pipeline.messages import Prediction, Probe
from pipeline.policies.base import Choice, Needs, Target, by_in_flight, some_of


class LeastOutstanding:
    needs: Needs = "nothing"

    def __init__(self, rng: random.Random, *, of: int | None = None) -> None:
        self.name = "least_outstanding" if of is None else f"least_outstanding:{of}"
        self._rng = rng
        self._of = of

    def shortlist(self, targets: Sequence[Target]) -> Sequence[Target]:
        return some_of(targets, self._of, self._rng)

    def choose(
        self, shortlist: Sequence[Target], predictions: Mapping[str, Prediction], probe: Probe
    ) -> Choice:
        return Choice(by_in_flight(shortlist, self._rng), "fewest in flight")
