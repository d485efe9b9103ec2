"""Least committed KV cache, of all instances or of a few at random. Asks nobody."""

import random
from collections.abc import Mapping, Sequence

from pipeline.messages import Prediction, Probe
from pipeline.policies.base import Choice, Needs, Target, by_committed, some_of


class LeastCommitted:
    needs: Needs = "nothing"

    def __init__(self, rng: random.Random, *, of: int | None = None) -> None:
        self.name = "least_committed" if of is None else f"least_committed:{of}"
        self._rng = rng
        self._of = of

    def shortlist(self, targets: Sequence[Target]) -> Sequence[Target]:
        return some_of(targets, self._of, self._rng)

    def choose(
        self, shortlist: Sequence[Target], predictions: Mapping[str, Prediction], probe: Probe
    ) -> Choice:
        return Choice(by_committed(shortlist, self._rng), "least committed")
