"""One, two and four dispatchers, each of which sees only its own dispatches at once."""

from dataclasses import replace

from evaluation.experiments.base import Experiment, Findings
from evaluation.experiments.cells import Cell
from evaluation.experiments.compare import line_panel, metric_table, paired_table
from evaluation.experiments.contenders import FEW, Contender, unique
from evaluation.experiments.metrics import E2E_MEAN, MAIN, TTFT_P99
from evaluation.experiments.rows import Rows
from evaluation.experiments.scale import Scale
from evaluation.experiments.testbed import KNEE, TESTBED, cells

NUMBERS = (1, 2, 4)
COMPARED = unique((Contender("round_robin"), Contender("least_outstanding"), *FEW))


def _cells(scale: Scale) -> list[Cell]:
    rates = scale.rates_of(quick=KNEE[1:2], full=KNEE[:2])
    return [
        cell
        for number in NUMBERS
        for cell in cells(
            scale,
            scale.compared(COMPARED),
            rates,
            cluster=replace(TESTBED, dispatchers=number),
            labels={"dispatchers": float(number)},
        )
    ]


def _findings(rows: Rows, _scale: Scale) -> Findings:
    highest = rows.where(rate=rows.values("rate")[-1])
    return Findings(
        tables=[
            *(metric_table(highest, metric, across="dispatchers") for metric in MAIN),
            *(
                paired_table(
                    highest.where(contender=name),
                    float(NUMBERS[-1]),
                    MAIN,
                    f"{name}: {NUMBERS[-1]} dispatchers, seed by seed",
                    down="dispatchers",
                )
                for name in highest.values("contender")
            ),
        ],
        panels=[
            line_panel(highest, metric, across="dispatchers", x_label="dispatchers")
            for metric in (TTFT_P99, E2E_MEAN)
        ],
    )


DISPATCHERS = Experiment(
    "dispatchers", "1, 2 and 4 dispatchers", _cells, _findings, takes_policies=True
)
