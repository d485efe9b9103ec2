"""The race between a probe and its dispatch, closed at the predictor.

Two dispatchers, four equal idle instances, fifty requests, all within one interval of the workers'
state updates. Each decision takes a probe's time, in which the other dispatcher decides too. In
virtual time, with the view and the simulation that run live.
"""

import random
from statistics import median

import pytest

from pipeline.messages import LengthEstimate, Prediction, Probe, StateUpdate
from pipeline.policies import Target
from pipeline.policies.power_of_two import PowerOfTwo
from pipeline.subjects import Header
from predictor.service import Oracle
from predictor.step_time import DEFAULT_PROFILE, LIMITS, PROFILES
from predictor.view import InstanceView

INSTANCES = 4
REQUESTS = 50
SEEDS = 200
PROBE_S = 0.002
ECHO_S = 0.003
"""From a decision to its headers on `queued.<instance>`."""
ARRIVAL_S = 0.002
PROMPT_TOKENS = 60


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class World:
    """Four views of idle instances that hear of dispatches, and of nothing else."""

    def __init__(self, seed: int, *, ledger: bool) -> None:
        self.clock = Clock()
        self.rng = random.Random(seed)
        self.ledger = ledger
        self.views = {f"i{n}": InstanceView(f"i{n}", self.clock) for n in range(INSTANCES)}
        self.oracles = {name: Oracle() for name in self.views}
        self.echoes: list[tuple[float, str, dict[str, str]]] = []
        for name, view in self.views.items():
            view.apply(
                StateUpdate(
                    instance=name,
                    boot="b",
                    sequence=1,
                    sent_at_ms=0.0,
                    limits=LIMITS[DEFAULT_PROFILE],
                    step_time=PROFILES[DEFAULT_PROFILE],
                    requests=[],
                    finished=[],
                )
            )

    def spread(self) -> int:
        """Most minus fewest requests of an instance."""
        policies = [PowerOfTwo(random.Random(self.rng.random())) for _ in range(2)]
        counts = dict.fromkeys(self.views, 0)
        targets = [Target(name, "b", 0) for name in self.views]
        decisions: list[tuple[float, Probe, list[Target], dict[str, Prediction]]] = []
        for number in range(REQUESTS):
            self.clock.now = number * ARRIVAL_S
            self._hear(decisions, policies, counts)
            shortlist = list(policies[number % 2].shortlist(targets))
            probe = self._probe(number)
            answers = {t.instance: self._ask(t.instance, probe) for t in shortlist}
            decisions.append((self.clock.now + PROBE_S, probe, shortlist, answers))
        self.clock.now += 1
        self._hear(decisions, policies, counts)
        return max(counts.values()) - min(counts.values())

    def _probe(self, number: int) -> Probe:
        # All alike: an even spread of work is then an even spread of requests.
        return Probe(
            key=f"c.{number}",
            prompt_tokens=PROMPT_TOKENS,
            max_tokens=1024,
            estimate=LengthEstimate(p10=80.0, p50=240.0, p90=480.0, source="test"),
        )

    def _ask(self, name: str, probe: Probe) -> Prediction:
        view = self.views[name]
        answer = self.oracles[name].predict(view.view(), probe)
        if self.ledger:
            view.probed(probe)
        return answer

    def _hear(
        self,
        decisions: list[tuple[float, Probe, list[Target], dict[str, Prediction]]],
        policies: list[PowerOfTwo],
        counts: dict[str, int],
    ) -> None:
        """Decisions whose probes are back by now, and the echoes of earlier ones."""
        while decisions and decisions[0][0] <= self.clock.now:
            at, probe, shortlist, answers = decisions.pop(0)
            number = int(probe.key.partition(".")[2])
            winner = policies[number % 2].choose(shortlist, answers, probe).order[0].instance
            counts[winner] += 1
            headers = {
                Header.REQUEST: probe.key,
                Header.PROMPT_TOKENS: str(probe.prompt_tokens),
                Header.MAX_TOKENS: "1024",
                Header.ESTIMATE: ",".join(
                    f"{q:g}" for q in (probe.estimate.p10, probe.estimate.p50, probe.estimate.p90)
                ),
            }
            self.echoes.append((at + ECHO_S, winner, headers))
        while self.echoes and self.echoes[0][0] <= self.clock.now:
            _, name, headers = self.echoes.pop(0)
            if self.ledger:
                self.views[name].queued(headers)


@pytest.mark.timeout(300)
def test_fifty_requests_in_one_interval_spread_over_idle_instances() -> None:
    with_ledger = median(World(seed, ledger=True).spread() for seed in range(SEEDS))
    without = median(World(seed, ledger=False).spread() for seed in range(SEEDS))
    assert with_ledger <= 3
    assert without >= 5
