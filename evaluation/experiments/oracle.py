"""What better length estimates are worth (the paper's figure 10)."""

from dataclasses import replace

from evaluation.experiments.base import Experiment, Findings
from evaluation.experiments.capacities import as_figures, capacity_table
from evaluation.experiments.cells import Cell
from evaluation.experiments.compare import line_panel, metric_table, paired_table
from evaluation.experiments.contenders import FAN_OUT, OURS, unique
from evaluation.experiments.metrics import E2E_MEAN, ERROR, MAIN, TTFT_P99
from evaluation.experiments.rows import Rows
from evaluation.experiments.scale import Scale
from evaluation.experiments.testbed import KNEE, KNEE_QUICK, cells, workload_of

ESTIMATES = ("calibrated:0", "tagger-like", "calibrated:0.8", "oracle")
"""From everybody's median to the truth; the number is the rank correlation with it."""
WITH_FAN_OUT = ("tagger-like", "oracle")


def _cells(scale: Scale) -> list[Cell]:
    rates = scale.rates_of(quick=KNEE_QUICK, full=(*KNEE, 34.0))
    return [
        cell
        for estimates in ESTIMATES
        for contender in unique((OURS, FAN_OUT) if estimates in WITH_FAN_OUT else (OURS,))
        for cell in cells(
            scale,
            [contender],
            rates,
            workload=replace(workload_of(scale), estimates=estimates),
            labels={"contender": f"{contender.label}, {estimates}"},
        )
    ]


def _findings(rows: Rows, _scale: Scale) -> Findings:
    usual = f"{OURS.label}, tagger-like"
    highest = rows.values("rate")[-1]
    return Findings(
        tables=[
            capacity_table(rows, "Capacity by what is known of lengths", against=usual),
            *(metric_table(rows, metric) for metric in (*MAIN, ERROR)),
            paired_table(
                rows.where(rate=highest), usual, MAIN, f"Seed by seed at {highest:g} a second"
            ),
        ],
        panels=[line_panel(rows, metric) for metric in (TTFT_P99, E2E_MEAN)],
        figures=as_figures(rows),
    )


ORACLE = Experiment("oracle", "true lengths against estimated ones", _cells, _findings)
