"""How long a request that was asked about counts as on its way: four dispatchers, bursts."""

from dataclasses import replace

from evaluation.experiments.base import Experiment, Findings
from evaluation.experiments.cells import Cell
from evaluation.experiments.compare import line_panel, metric_table, paired_table
from evaluation.experiments.contenders import OURS, PAPERS, unique
from evaluation.experiments.metrics import E2E_MEAN, MAIN, TTFT_MEAN
from evaluation.experiments.rows import Rows
from evaluation.experiments.scale import Scale
from evaluation.experiments.testbed import KNEE, TESTBED, cells, workload_of

TENTATIVE_MS = (0.0, 5.0, 20.0, 100.0)
BURSTINESS = 0.25


def _cells(scale: Scale) -> list[Cell]:
    return [
        cell
        for tentative_ms in TENTATIVE_MS
        for cell in cells(
            scale,
            unique((PAPERS, OURS)),
            scale.rates_of(quick=KNEE[:1], full=KNEE[:1]),
            cluster=replace(TESTBED, dispatchers=4, tentative_ms=tentative_ms),
            workload=replace(workload_of(scale), burstiness=BURSTINESS),
            labels={"tentative_ms": tentative_ms},
        )
    ]


def _findings(rows: Rows, _scale: Scale) -> Findings:
    highest = rows.where(rate=rows.values("rate")[-1])
    return Findings(
        tables=[
            *(metric_table(highest, metric, across="tentative_ms") for metric in MAIN),
            *(
                paired_table(
                    highest.where(contender=name),
                    TENTATIVE_MS[0],
                    MAIN,
                    f"{name}: against none, seed by seed",
                    down="tentative_ms",
                )
                for name in highest.values("contender")
            ),
        ],
        panels=[
            line_panel(highest, metric, across="tentative_ms", x_label="tentative for, ms")
            for metric in (TTFT_MEAN, E2E_MEAN)
        ],
    )


TENTATIVE = Experiment(
    "tentative", "how long a probe counts as a request on its way", _cells, _findings
)
