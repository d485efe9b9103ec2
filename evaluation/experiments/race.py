"""The race between a probe and its dispatch: predictors that do not hear of dispatches."""

from dataclasses import replace

from evaluation.experiments.base import Experiment, Findings
from evaluation.experiments.cells import Cell
from evaluation.experiments.compare import metric_table, paired_table
from evaluation.experiments.contenders import LLUMNIX, OURS, PAPERS, unique
from evaluation.experiments.metrics import MAIN, PREEMPTIONS, TTFT_P99
from evaluation.experiments.plots import BarPanel
from evaluation.experiments.rows import Rows
from evaluation.experiments.scale import Scale
from evaluation.experiments.testbed import KNEE, TESTBED, cells
from evaluation.world.settings import Delays

PROBE_MS = 70.0
"""What one of the paper's predictions takes."""
PICTURES = {
    "hears dispatches": TESTBED,
    "hears none": replace(TESTBED, hears_dispatches=False, tentative_ms=0.0),
    f"hears none, probes of {PROBE_MS:g} ms": replace(
        TESTBED, hears_dispatches=False, tentative_ms=0.0, delays=Delays(probe_ms=PROBE_MS)
    ),
}


def _cells(scale: Scale) -> list[Cell]:
    return [
        cell
        for picture, cluster in PICTURES.items()
        for cell in cells(
            scale,
            scale.compared(unique((LLUMNIX, PAPERS, OURS))),
            scale.rates_of(quick=KNEE[-1:], full=KNEE[-1:]),
            cluster=cluster,
            labels={"picture": picture},
        )
    ]


def _findings(rows: Rows, _scale: Scale) -> Findings:
    first = next(iter(PICTURES))
    highest = rows.where(rate=rows.values("rate")[-1])
    bars = [
        (f"{name}, {picture}", highest.where(contender=name, picture=picture))
        for name in highest.values("contender")
        for picture in highest.values("picture")
    ]
    return Findings(
        tables=[
            *(metric_table(highest, metric, across="picture") for metric in MAIN),
            *(
                paired_table(
                    highest.where(contender=name),
                    first,
                    MAIN,
                    f"{name}: {first}, against, seed by seed",
                    down="picture",
                )
                for name in highest.values("contender")
            ),
        ],
        panels=[
            BarPanel(
                metric.title,
                metric.heading,
                [title for title, _ in bars],
                [metric.in_unit(some.mean(metric.figure)) for _, some in bars],
            )
            for metric in (TTFT_P99, PREEMPTIONS)
        ],
    )


RACE = Experiment(
    "race",
    "predictors that do not hear of dispatches, as the paper's",
    _cells,
    _findings,
    takes_policies=True,
)
