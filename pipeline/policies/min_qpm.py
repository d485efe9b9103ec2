"""Fewest requests per minute: whoever got the fewest from this dispatcher in the last 60 s.

A request counts when it is chosen. Like the rule it is a copy of, it knows of no other
dispatcher's requests, and of nobody's end.
"""

import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from pipeline.messages import Prediction, Probe
from pipeline.policies.base import Choice, Needs, Target

WINDOW_S = 60.0
SENT_MAX = 100_000
"""Above 1,666 requests a second the window is shorter than a minute; the counts stay comparable."""


class MinQpm:
    name = "min_qpm"
    needs: Needs = "nothing"

    def __init__(self, rng: random.Random, clock: Callable[[], float]) -> None:
        self._rng = rng
        self._clock = clock
        self._sent: deque[tuple[float, str]] = deque()
        self._counts: Counter[str] = Counter()

    def shortlist(self, targets: Sequence[Target]) -> Sequence[Target]:
        return targets

    def choose(
        self, shortlist: Sequence[Target], predictions: Mapping[str, Prediction], probe: Probe
    ) -> Choice:
        now = self._clock()
        while self._sent and (self._sent[0][0] <= now - WINDOW_S or len(self._sent) >= SENT_MAX):
            self._forget_oldest()
        counts = self._counts
        order = sorted(shortlist, key=lambda t: (counts[t.instance], self._rng.random()))
        self._sent.append((now, order[0].instance))
        counts[order[0].instance] += 1
        return Choice(order, "fewest sent in the last minute")

    def _forget_oldest(self) -> None:
        _, instance = self._sent.popleft()
        self._counts[instance] -= 1
        if not self._counts[instance]:
            del self._counts[instance]
