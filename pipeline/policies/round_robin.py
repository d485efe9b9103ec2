"""One instance after the other, in the order in which they are listed. Each dispatcher has its own
turn."""

import random
from collections.abc import Mapping, Sequence

from pipeline.messages import Prediction, Probe
from pipeline.policies.base import ALTERNATIVES, Choice, Needs, Target


class RoundRobin:
    name = "round_robin"
    needs: Needs = "nothing"

    def __init__(self, rng: random.Random) -> None:
        # Dispatchers that start together would otherwise walk in step.
        self._turn = rng.randrange(2**16)

    def shortlist(self, targets: Sequence[Target]) -> Sequence[Target]:
        first = self._turn
        self._turn += 1
        return [targets[(first + n) % len(targets)] for n in range(min(ALTERNATIVES, len(targets)))]

    def choose(
        self, shortlist: Sequence[Target], predictions: Mapping[str, Prediction], probe: Probe
    ) -> Choice:
        return Choice(shortlist, "next in turn")
