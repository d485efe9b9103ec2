"""Unlike instances: three kinds of GPU in a pool, and one instance three times slower than told."""

from dataclasses import replace

from evaluation.experiments.base import Experiment, Findings
from evaluation.experiments.cells import Cell
from evaluation.experiments.compare import paired_table, several_table
from evaluation.experiments.contenders import FAN_OUT, FEW, OURS, Contender, unique
from evaluation.experiments.metrics import E2E_MEAN, E2E_P99, MAIN, TTFT_MEAN, TTFT_P99
from evaluation.experiments.plots import BarPanel
from evaluation.experiments.rows import Rows
from evaluation.experiments.scale import Scale
from evaluation.experiments.testbed import INSTANCES, TESTBED, cells
from evaluation.world.settings import InstanceSettings, instance

MIXED = tuple(
    instance(profile)
    for profile in ("a30-llama-2-7b", "a100-llama-2-7b", "h100-llama-2-7b")
    for _ in range(INSTANCES // 3)
)
ONE_SLOW = (instance(slowdown=3.0), *(instance() for _ in range(INSTANCES - 1)))
POOLS: dict[str, tuple[tuple[InstanceSettings, ...], tuple[float, ...]]] = {
    "4 A30, 4 A100, 4 H100": (MIXED, (70.0, 85.0)),
    "one of 12 three times slower": (ONE_SLOW, (22.0, 26.0)),
}
"""With rates that load each as the testbed is loaded below and at its knee."""
COMPARED = unique((Contender("round_robin"), Contender("least_outstanding"), *FEW, FAN_OUT))
SHOWN = (*MAIN, E2E_P99)


def _cells(scale: Scale) -> list[Cell]:
    return [
        cell
        for pool, (instances, rates) in POOLS.items()
        for cell in cells(
            scale,
            scale.compared(COMPARED),
            scale.rates_of(quick=rates[:1], full=rates),
            cluster=replace(TESTBED, instances=instances),
            labels={"pool": pool},
        )
    ]


def _findings(rows: Rows, _scale: Scale) -> Findings:
    tables, panels = [], []
    for pool in rows.values("pool"):
        for rate in rows.where(pool=pool).values("rate"):
            some = rows.where(pool=pool, rate=rate)
            title = f"{pool}, {rate:g} a second"
            tables.append(several_table(some, SHOWN, title))
            tables.append(paired_table(some, OURS.label, SHOWN, f"{title}, seed by seed"))
        for metric in (TTFT_MEAN, E2E_MEAN):
            panels.append(
                BarPanel(
                    f"{title}: {metric.title}",
                    metric.heading,
                    [str(name) for name in some.values("contender")],
                    [
                        metric.in_unit(some.where(contender=name).mean(metric.figure))
                        for name in some.values("contender")
                    ],
                )
            )
    return Findings(tables=tables, panels=panels, paragraphs=[_tail(rows)])


def _tail(rows: Rows) -> str:
    """Whose P99 TTFT is lowest, in plain words."""
    found = []
    for pool in rows.values("pool"):
        rate = rows.where(pool=pool).values("rate")[-1]
        some = rows.where(pool=pool, rate=rate)
        best = min(
            some.values("contender"),
            key=lambda name: some.where(contender=name).mean(TTFT_P99.figure).mean,
        )
        found.append(f"{pool}, {rate:g} a second: {best}")
    return f"Lowest mean of P99 TTFT: {'; '.join(found)}."


HETERO = Experiment(
    "hetero",
    "mixed GPUs, and one instance slower than it says",
    _cells,
    _findings,
    takes_policies=True,
)
