"""Any instance, uniformly. The floor of every comparison."""

import random
from collections.abc import Mapping, Sequence

from pipeline.messages import Prediction, Probe
from pipeline.policies.base import ALTERNATIVES, Choice, Needs, Target, some_of


class RandomChoice:
    name = "random"
    needs: Needs = "nothing"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def shortlist(self, targets: Sequence[Target]) -> Sequence[Target]:
        return some_of(targets, ALTERNATIVES, self._rng)

    def choose(
        self, shortlist: Sequence[Target], predictions: Mapping[str, Prediction], probe: Probe
    ) -> Choice:
        return Choice(shortlist, "random")
