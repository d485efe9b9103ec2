"""Two instances at random, the one whose predictor answers with the lower cost."""

import random
from collections.abc import Mapping, Sequence

from pipeline.messages import Prediction, Probe
from pipeline.policies.base import Choice, Needs, Target, by_cost, some_of


class PowerOfTwo:
    """The paper's rule, with `choices` as a parameter. The cost is the predictor's score."""

    needs: Needs = "prediction"

    def __init__(self, rng: random.Random, *, choices: int = 2) -> None:
        self.name = "power_of_two" if choices == 2 else f"power_of_two:{choices}"
        self._rng = rng
        self._choices = choices

    def shortlist(self, targets: Sequence[Target]) -> Sequence[Target]:
        return some_of(targets, self._choices, self._rng)

    def choose(
        self, shortlist: Sequence[Target], predictions: Mapping[str, Prediction], probe: Probe
    ) -> Choice:
        return by_predicted_cost(shortlist, predictions, self._rng)


def by_predicted_cost(
    shortlist: Sequence[Target], predictions: Mapping[str, Prediction], rng: random.Random
) -> Choice:
    """Lowest predicted cost first; the silent ones last."""
    costs = {name: prediction.cost for name, prediction in predictions.items()}
    return by_cost(shortlist, costs, rng, "lowest predicted cost")
