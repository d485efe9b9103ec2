"""Another rule on counts that are refreshed now and then, as by routers that poll.

Between two polls all decisions see the same counts, and herd onto whoever looked free: this is the
staleness that asking per request avoids, kept here to be measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pipeline.messages import Prediction, Probe
from pipeline.policies.base import Choice, Needs, Policy, Target


class Polled:
    """`rule` on counts in flight that are up to `every_s` old."""

    needs: Needs = "nothing"

    def __init__(self, rule: Policy, every_s: float, clock: Callable[[], float]) -> None:
        """`rule` is one that needs nothing: what it asked for itself would be fresh."""
        self.name = f"polled:{every_s:g}:{rule.name}"
        self._rule = rule
        self._every_s = every_s
        self._clock = clock
        self._polled_at: float | None = None
        self._counts: dict[str, int] = {}

    def shortlist(self, targets: Sequence[Target]) -> Sequence[Target]:
        now = self._clock()
        if self._polled_at is None or now - self._polled_at >= self._every_s:
            self._polled_at = now
            self._counts = {target.instance: target.in_flight for target in targets}
        return [self._as_polled(target) for target in self._rule.shortlist(targets)]

    def _as_polled(self, target: Target) -> Target:
        """Whoever came since the last poll is polled when it is first seen."""
        count = self._counts.setdefault(target.instance, target.in_flight)
        return replace(target, in_flight=count)

    def choose(
        self, shortlist: Sequence[Target], predictions: Mapping[str, Prediction], probe: Probe
    ) -> Choice:
        return self._rule.choose(shortlist, predictions, probe)
