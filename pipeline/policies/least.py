"""The least of something that is known without asking, of all instances or of a few at random.

By count in flight (`least_outstanding`; of two it is what Ray Serve does) or by the share of the KV
cache that is promised (`least_committed`).
"""

import random
from collections.abc import Callable, Mapping, Sequence

from pipeline.messages import Prediction, Probe
from pipeline.policies.base import Choice, Needs, Target, some_of

Order = Callable[[Sequence[Target], random.Random], list[Target]]


class Least:
    needs: Needs = "nothing"

    def __init__(
        self, name: str, order: Order, reason: str, rng: random.Random, *, of: int | None = None
    ) -> None:
        self.name = name if of is None else f"{name}:{of}"
        self._order = order
        self._reason = reason
        self._rng = rng
        self._of = of

    def shortlist(self, targets: Sequence[Target]) -> Sequence[Target]:
        return some_of(targets, self._of, self._rng)

    def choose(
        self, shortlist: Sequence[Target], predictions: Mapping[str, Prediction], probe: Probe
    ) -> Choice:
        return Choice(self._order(shortlist, self._rng), self._reason)
