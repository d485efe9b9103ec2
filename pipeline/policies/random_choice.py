"""Any instance, uniformly. The floor of every comparison."""

import random
from collections.abc import Mapping, Sequence

from pipeline.messages import Prediction
from pipeline.policies.base import Choice, Target


class RandomChoice:
    name = "random"
    needs_probe = False

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def shortlist(self, targets: Sequence[Target]) -> Sequence[Target]:
        return targets

    def choose(self, shortlist: Sequence[Target], predictions: Mapping[str, Prediction]) -> Choice:
        return Choice(self._rng.sample(shortlist, len(shortlist)), "random")
