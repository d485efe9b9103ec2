"""Two instances at random, the one whose predictor answers with the lower cost."""

import random
from collections.abc import Mapping, Sequence

from pipeline.messages import Prediction
from pipeline.policies.base import Choice, Target, by_in_flight


class PowerOfTwo:
    """The paper's rule, with `choices` as a parameter. The cost is the predictor's score."""

    name = "power_of_two"
    needs_probe = True

    def __init__(self, rng: random.Random, *, choices: int = 2) -> None:
        self._rng = rng
        self._choices = choices

    def shortlist(self, targets: Sequence[Target]) -> Sequence[Target]:
        return self._rng.sample(targets, min(self._choices, len(targets)))

    def choose(self, shortlist: Sequence[Target], predictions: Mapping[str, Prediction]) -> Choice:
        """Predicted ones by cost; the silent ones behind them, by count in flight.

        With no prediction at all the count alone decides, and the choice says so.
        """
        answered = [target for target in shortlist if target.instance in predictions]
        silent = by_in_flight([t for t in shortlist if t.instance not in predictions], self._rng)
        if not answered:
            return Choice(silent, "no prediction: fewest in flight", fallback=True)
        answered.sort(key=lambda t: (predictions[t.instance].cost, self._rng.random()))
        return Choice([*answered, *silent], "lowest predicted cost")
