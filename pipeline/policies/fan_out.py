"""Every instance's predictor is asked: the best that predictions can do, at N probes a request."""

import random
from collections.abc import Mapping, Sequence

from pipeline.messages import Prediction, Probe
from pipeline.policies.base import Choice, Needs, Target
from pipeline.policies.power_of_two import by_predicted_cost


class FanOut:
    name = "fan_out"
    needs: Needs = "prediction"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def shortlist(self, targets: Sequence[Target]) -> Sequence[Target]:
        return targets

    def choose(
        self, shortlist: Sequence[Target], predictions: Mapping[str, Prediction], probe: Probe
    ) -> Choice:
        return by_predicted_cost(shortlist, predictions, self._rng)
