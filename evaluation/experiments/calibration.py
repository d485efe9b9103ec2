"""How much engine time a step needs that no profile has: fitted once, on the oblivious policies.

The paper's round robin, random and min QPM reach 26 to 27, 26 to 27 and 25 to 26 requests a second
at the 10 s SLO. The mean capacity of the three falls with the overhead; where it meets theirs is
the testbed's. Load-aware policies have no part in it, so what is found about them is not put in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from evaluation.experiments.base import PAPERS_REQUESTS, Experiment, Findings
from evaluation.experiments.capacities import NOTE, capacities, shown
from evaluation.experiments.cells import Cell
from evaluation.experiments.contenders import OBLIVIOUS
from evaluation.experiments.metrics import bracketed
from evaluation.experiments.plots import Curve, LinePanel
from evaluation.experiments.rows import Rows
from evaluation.experiments.scale import Scale
from evaluation.experiments.statistics import mean_interval
from evaluation.experiments.tables import Table
from evaluation.experiments.testbed import INSTANCES, TESTBED, cells
from evaluation.world.settings import OVERHEAD_MS, instance

SLO_MS = 10_000.0
PAPERS_CAPACITY = (26.5 + 26.5 + 25.5) / 3
"""Of the three, in requests a second: the middles of the published brackets."""
OVERHEADS_MS = (0.0, 1.0, 2.0)
RATES = (20.0, 22.0, 24.0, 26.0, 28.0, 30.0)
RATES_QUICK = (22.0, 26.0, 30.0)


def _cells(scale: Scale) -> list[Cell]:
    return [
        cell
        for overhead_ms in OVERHEADS_MS
        for cell in cells(
            scale,
            OBLIVIOUS,
            scale.rates_of(quick=RATES_QUICK, full=RATES),
            cluster=replace(TESTBED, instances=(instance(overhead_ms=overhead_ms),) * INSTANCES),
            labels={"overhead_ms": overhead_ms},
        )
    ]


def _findings(rows: Rows, scale: Scale) -> Findings:
    by_overhead = {
        float(overhead_ms): capacities(rows.where(overhead_ms=overhead_ms), SLO_MS)
        for overhead_ms in rows.values("overhead_ms")
    }
    means = {
        overhead_ms: {
            seed: sum(one.by_seed[seed] for one in found.values()) / len(found)
            for seed in scale.seeds
        }
        for overhead_ms, found in by_overhead.items()
    }
    fits = [
        fitted_overhead({ms: by_seed[seed] for ms, by_seed in means.items()}, PAPERS_CAPACITY)
        for seed in scale.seeds
    ]
    fit = mean_interval(fits)
    intervals = {ms: mean_interval(list(by_seed.values())) for ms, by_seed in means.items()}
    names = [contender.label for contender in OBLIVIOUS]
    return Findings(
        paragraphs=[
            f"The oblivious policies' mean capacity at {SLO_MS / 1000:g} s is the paper's "
            f"{PAPERS_CAPACITY:.1f} requests a second at an overhead of "
            f"{bracketed(fit, 2)} ms a step; the simulated world uses {OVERHEAD_MS:g} ms."
        ],
        tables=[
            Table(
                f"Capacity at {SLO_MS / 1000:g} s by overhead, requests a second",
                ["overhead, ms a step", *names, "mean of the three"],
                [
                    [
                        f"{overhead_ms:g}",
                        *(shown(found[name]) for name in names),
                        bracketed(intervals[overhead_ms], 1),
                    ]
                    for overhead_ms, found in by_overhead.items()
                ],
                NOTE,
            )
        ],
        panels=[
            LinePanel(
                f"Capacity, P99 TTFT ≤ {SLO_MS / 1000:g} s",
                "overhead, ms a step",
                "requests a second",
                [
                    Curve(
                        name,
                        list(by_overhead),
                        [found[name].interval for found in by_overhead.values()],
                    )
                    for name in names
                ],
                limits=[PAPERS_CAPACITY],
            )
        ],
        figures={"overhead_ms": fit.mean, "low": fit.low, "high": fit.high, "by_seed": fits},
    )


def fitted_overhead(capacity_by_overhead: Mapping[float, float], wanted: float) -> float:
    """The overhead in ms at which the capacity is `wanted`, between the grid's points linearly.

    The first where it is too low from the start, the last where it is never low enough: nothing
    can be told beyond the grid.
    """
    overheads: Sequence[float] = sorted(capacity_by_overhead)
    if capacity_by_overhead[overheads[0]] <= wanted:
        return overheads[0]
    for lower, upper in pairwise(overheads):
        above, below = capacity_by_overhead[lower], capacity_by_overhead[upper]
        if below <= wanted:
            return lower + (above - wanted) / (above - below) * (upper - lower)
    return overheads[-1]


CALIBRATE = Experiment(
    "calibrate",
    "engine overhead a step, fitted on the oblivious policies",
    _cells,
    _findings,
    PAPERS_REQUESTS,
)
