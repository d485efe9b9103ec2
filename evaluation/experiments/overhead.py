"""What a decision costs in CPU time (the paper's figure 13 has percent of a process)."""

from evaluation.experiments.base import PAPERS_REQUESTS, Experiment, Findings
from evaluation.experiments.cells import Cell
from evaluation.experiments.compare import line_panel, metric_table
from evaluation.experiments.contenders import CONTENDERS
from evaluation.experiments.metrics import DECISION_CPU, PROBES
from evaluation.experiments.rows import Rows
from evaluation.experiments.scale import Scale
from evaluation.experiments.testbed import SATURATED, cells

RATES = (20.0, 28.0, SATURATED)
RATES_QUICK = (24.0, SATURATED)


def _cells(scale: Scale) -> list[Cell]:
    """Runs of the sweep's, where it has been made."""
    return cells(scale, scale.compared(CONTENDERS), scale.rates_of(quick=RATES_QUICK, full=RATES))


def _findings(rows: Rows, _scale: Scale) -> Findings:
    return Findings(
        paragraphs=[
            "CPU time of the policy and of all predictors that it asks, in this process, on the "
            "machine named above, with as many other runs beside it as it has processors: compare "
            "within this table. Messages are not in it (docs/benchmarks.md has those). The same "
            "by the number of choices: `choices`."
        ],
        tables=[metric_table(rows, DECISION_CPU), metric_table(rows, PROBES)],
        panels=[line_panel(rows, DECISION_CPU)],
    )


OVERHEAD = Experiment(
    "overhead",
    "CPU time and probes a decision",
    _cells,
    _findings,
    PAPERS_REQUESTS,
    takes_policies=True,
)
