"""Power of two in two stages: what is known for nothing first, then predictions.

Every dispatch is heard on the bus with the request's prompt and its estimate, so a dispatcher knows
how much memory each instance has promised, and asks nobody for it. Of those that are drawn at
random the ones that have promised the least are asked.
"""

import random
from collections.abc import Mapping, Sequence

from pipeline.messages import Prediction, Probe
from pipeline.policies.base import Choice, Needs, Target, by_committed, some_of
from pipeline.policies.power_of_two import by_predicted_cost

DRAWN_BEYOND = 4
"""With fewer the emptiest is missed more often; with more nothing is gained, and an instance that
is slower than it says is found more surely (decision 5)."""


class Sifted:
    """`choices` are asked, of `DRAWN_BEYOND` more."""

    needs: Needs = "prediction"

    def __init__(self, rng: random.Random, *, choices: int = 2) -> None:
        self.name = "sifted" if choices == 2 else f"sifted:{choices}"
        self._rng = rng
        self._choices = choices

    def shortlist(self, targets: Sequence[Target]) -> Sequence[Target]:
        drawn = some_of(targets, self._choices + DRAWN_BEYOND, self._rng)
        return by_committed(drawn, self._rng)[: self._choices]

    def choose(
        self, shortlist: Sequence[Target], predictions: Mapping[str, Prediction], probe: Probe
    ) -> Choice:
        return by_predicted_cost(shortlist, predictions, self._rng)
