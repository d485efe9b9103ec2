"""Who is compared in which cases, and the loop that runs it all, one after another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluation.rivals.engines import SLOWER, Engines
from evaluation.rivals.measure import Idle, Measured, Plan, measure, measure_idle
from evaluation.rivals.rigs import EnterRig, our_rig, router_rig
from evaluation.rivals.routers import ROUTERS
from evaluation.rivals.targets import Enter, direct, pipeline, routed

LOAD = 0.85
CASES = {"equal": 1.0, "one slower": SLOWER}
"""How many times as long the first engine's steps take, by case."""
OURS: Mapping[str, Enter] = {
    "power_of_two": pipeline("power_of_two", "told"),
    "power_of_two, lengths hidden": pipeline("power_of_two", "hidden"),
    "least_outstanding:2": pipeline("least_outstanding:2", "told"),
}


@dataclass(frozen=True, slots=True)
class Contender:
    """One row of the comparison."""

    name: str
    policy: str
    enter: Enter
    enter_rig: EnterRig | None = None
    """For the fault cases; the first policy of each has it."""

    @property
    def label(self) -> str:
        return f"{self.name} {self.policy}"


@dataclass(frozen=True, slots=True)
class Row:
    """One contender in one case with one seed."""

    case: str
    seed: int
    contender: Contender
    floor: Idle
    """One server with nothing in front, in the same case and with the same seed."""
    measured: Measured

    @property
    def added_ms(self) -> float:
        """What being in front costs an idle engine's first token, median less median."""
        return self.measured.idle.ttft_p50 - self.floor.ttft_p50


@dataclass(frozen=True, slots=True)
class Comparison:
    """How much is measured."""

    engines: int
    time_scale: float
    seconds: float
    idle_requests: int
    seeds: Sequence[int]

    def plan(self, case: str, seed: int) -> Plan:
        engines = Engines(self.engines, self.time_scale, seed, CASES[case])
        return Plan(engines, LOAD, self.seconds, self.idle_requests)


def contenders(environments: Mapping[str, Path], only: Sequence[str]) -> list[Contender]:
    """Routers whose environment is there, then ours; with `only`, those whose label has one of
    these texts in it."""
    rows: list[Contender] = []
    for name, environment in environments.items():
        router = ROUTERS[name]
        for number, policy in enumerate(router.policies):
            rig = None if number else router_rig(router, policy, environment)
            rows.append(Contender(name, policy, routed(router, policy, environment), rig))
    for number, (policy, enter) in enumerate(OURS.items()):
        rows.append(Contender("astrolabe", policy, enter, None if number else our_rig))
    return [row for row in rows if not only or any(text in row.label for text in only)]


async def compare(
    comparison: Comparison,
    rows: Sequence[Contender],
    on_start: Callable[[str], None],
    on_row: Callable[[Row], None],
) -> list[Row]:
    """Every contender in every case with every seed; `on_row` hears of each as it is there."""
    done: list[Row] = []
    for seed in comparison.seeds:
        for case in CASES:
            plan = comparison.plan(case, seed)
            on_start(f"{case}, seed {seed}: direct")
            floor = await measure_idle(direct, plan)
            for contender in rows:
                on_start(f"{case}, seed {seed}: {contender.label}")
                row = Row(case, seed, contender, floor, await measure(contender.enter, plan))
                done.append(row)
                on_row(row)
    return done
