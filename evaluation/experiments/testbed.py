"""The paper's testbed as cells: twelve A30s with Llama-2-7B, ShareGPT's lengths, Poisson arrivals.

Experiments say only in what they differ from it, so that the runs that they share are one cell.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from evaluation.experiments.cells import Cell, Label, Workload
from evaluation.experiments.contenders import Contender
from evaluation.experiments.scale import Scale
from evaluation.world.settings import ClusterSettings

INSTANCES = 12
RATES = (20.0, 24.0, 26.0, 28.0, 30.0, 32.0, 34.0)
"""The paper's sweep, in requests a second; closer where capacities lie."""
RATES_QUICK = (24.0, 28.0, 32.0)
KNEE = (28.0, 30.0, 32.0)
KNEE_QUICK = (28.0, 32.0)
SATURATED = 32.0
"""Where the paper counts preemptions, bursts and noise."""
TESTBED = ClusterSettings()


def workload_of(scale: Scale) -> Workload:
    """The paper's, at a rate that is set later."""
    return Workload(scale.workload, scale.requests, SATURATED, folder=scale.folder)


def cells(
    scale: Scale,
    contenders: Iterable[Contender],
    rates: Sequence[float],
    *,
    cluster: ClusterSettings = TESTBED,
    workload: Workload | None = None,
    labels: Mapping[str, Label] | None = None,
) -> list[Cell]:
    """All contenders at all rates with all of the scale's seeds, in `cluster` with `workload`.

    Labels are `contender` and `rate`; `labels` adds to them, or says otherwise.
    """
    arrivals = workload or workload_of(scale)
    return [
        Cell(
            cluster=replace(cluster, policy=contender.policy, score=contender.score),
            workload=replace(arrivals, rate=rate),
            seed=seed,
            labels={"contender": contender.label, "rate": rate, **(labels or {})},
        )
        for contender, rate, seed in product(contenders, rates, scale.seeds)
    ]
