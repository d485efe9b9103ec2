"""One instance after the other, by name. Each dispatcher has its own turn."""

import random
from collections.abc import Mapping, Sequence

from pipeline.messages import Prediction
from pipeline.policies.base import Choice, Target


class RoundRobin:
    name = "round_robin"
    needs_probe = False

    def __init__(self, rng: random.Random) -> None:
        # Dispatchers that start together would otherwise walk in step.
        self._turn = rng.randrange(2**16)

    def shortlist(self, targets: Sequence[Target]) -> Sequence[Target]:
        return targets

    def choose(self, shortlist: Sequence[Target], predictions: Mapping[str, Prediction]) -> Choice:
        ordered = sorted(shortlist, key=lambda target: target.instance)
        first = self._turn % len(ordered)
        self._turn += 1
        return Choice([*ordered[first:], *ordered[:first]], "next in turn")
