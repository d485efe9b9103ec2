"""Counts that are polled now and then, as routers do, against exact counts and against asking."""

from evaluation.experiments.base import Experiment, Findings
from evaluation.experiments.cells import Cell
from evaluation.experiments.compare import line_panel, metric_table, paired_table
from evaluation.experiments.contenders import (
    LEAST_OUTSTANDING_OF_TWO,
    OURS,
    Contender,
    unique,
)
from evaluation.experiments.metrics import E2E_MEAN, MAIN, TTFT_P99
from evaluation.experiments.rows import Rows
from evaluation.experiments.scale import Scale
from evaluation.experiments.testbed import cells

EVERY_S = (1, 5, 10)
RULES = ("least_outstanding:2", "least_outstanding")
RATES = (20.0, 24.0, 28.0)
RATES_QUICK = (20.0, 28.0)


def _cells(scale: Scale) -> list[Cell]:
    polled = (Contender(f"polled:{seconds}:{rule}") for rule in RULES for seconds in EVERY_S)
    contenders = unique(
        (
            Contender("round_robin"),
            *polled,
            Contender("least_outstanding"),
            LEAST_OUTSTANDING_OF_TWO,
            OURS,
        )
    )
    return cells(scale, contenders, scale.rates_of(quick=RATES_QUICK, full=RATES))


def _findings(rows: Rows, _scale: Scale) -> Findings:
    highest = rows.values("rate")[-1]
    return Findings(
        tables=[
            *(metric_table(rows, metric) for metric in MAIN),
            paired_table(
                rows.where(rate=highest), OURS.label, MAIN, f"Seed by seed at {highest:g} a second"
            ),
        ],
        panels=[line_panel(rows, metric) for metric in (TTFT_P99, E2E_MEAN)],
    )


STALE = Experiment(
    "stale", "polled counts against exact ones and against probes", _cells, _findings
)
