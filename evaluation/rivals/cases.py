"""Who is compared in which cases, and the loop that runs it all, one after another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from evaluation.rivals import environments
from evaluation.rivals.engines import SLOWER, Engines
from evaluation.rivals.measure import Idle, Measured, Plan, measure, measure_idle
from evaluation.rivals.rigs import EnterRig, our_rig, router_rig
from evaluation.rivals.routers import ROUTERS
from evaluation.rivals.targets import Enter, direct, pipeline, routed
from pipeline.errors import UsageError
from pipeline.policies import DEFAULT_POLICY

LOAD = 0.85
CASES = {"equal": 1.0, "one slower": SLOWER}
"""How many times as long the first engine's steps take, by case."""
OURS: Mapping[str, Enter] = {
    DEFAULT_POLICY: pipeline(DEFAULT_POLICY, "told"),
    f"{DEFAULT_POLICY}, lengths hidden": pipeline(DEFAULT_POLICY, "hidden"),
    "power_of_two": pipeline("power_of_two", "told"),
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


def contenders(only: Sequence[str]) -> list[Contender]:
    """Every router with every policy, then ours; with `only`, those whose label has one of these
    texts in it. Raises UsageError where none has."""
    rows: list[Contender] = []
    for name, router in ROUTERS.items():
        environment = environments.place(router)
        for number, policy in enumerate(router.policies):
            rig = None if number else router_rig(router, policy, environment)
            rows.append(Contender(name, policy, routed(router, policy, environment), rig))
    for number, (policy, enter) in enumerate(OURS.items()):
        rows.append(Contender("astrolabe", policy, enter, None if number else our_rig))
    chosen = [row for row in rows if not only or any(text in row.label for text in only)]
    if not chosen:
        labels = ", ".join(row.label for row in rows)
        raise UsageError(f"--only {', '.join(only)}: nothing of {labels} has that in its name")
    return chosen


async def compare(
    comparison: Comparison,
    rows: Sequence[Contender],
    tell: Callable[[str], None],
    on_row: Callable[[Row], None],
) -> None:
    """Every contender in every case with every seed; `on_row` hears of each as it is there.

    One that does not start is told, and the others go on.
    """
    for seed in comparison.seeds:
        for case in CASES:
            plan = comparison.plan(case, seed)
            tell(f"{case}, seed {seed}: direct")
            floor = await measure_idle(direct, plan)
            for contender in rows:
                tell(f"{case}, seed {seed}: {contender.label}")
                try:
                    measured = await measure(contender.enter, plan)
                except UsageError as error:
                    tell(f"{contender.label} is left out: {error}")
                    continue
                on_row(Row(case, seed, contender, floor, measured))
