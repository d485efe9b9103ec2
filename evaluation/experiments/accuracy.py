"""How right predictions are (the paper's figure 5): error and bias by load, and how often the lower
prediction was the better place, from copies of both candidates that are run on alone."""

from dataclasses import replace

from evaluation.experiments.base import Experiment, Findings
from evaluation.experiments.cells import Cell
from evaluation.experiments.compare import line_panel, metric_table
from evaluation.experiments.contenders import OURS
from evaluation.experiments.metrics import BIAS, ERROR, Metric
from evaluation.experiments.rows import Rows
from evaluation.experiments.scale import Scale
from evaluation.experiments.testbed import TESTBED, cells, workload_of

RATES = (12.0, 20.0, 24.0, 28.0, 32.0)
RATES_QUICK = (12.0, 20.0, 28.0)
CLONE_EVERY = 20
ESTIMATES = ("tagger-like", "oracle")
RIGHT = (
    Metric("right_by_prediction", "better place by prediction", "% of pairs", 100, decimals=1),
    Metric("right_by_in_flight", "better place by count in flight", "% of pairs", 100, decimals=1),
    Metric("pairs_far", "pairs with E2E 10 % apart", "", decimals=1),
    Metric("far_right_by_prediction", "of these, right by prediction", "", decimals=1),
    Metric("far_right_by_in_flight", "of these, right by count in flight", "", decimals=1),
)
CLONES = (
    Metric("clone_error_median", "median E2E error, no later arrivals", "%", 100, decimals=1),
    Metric("clone_bias_median", "median E2E bias, no later arrivals", "%", 100, decimals=1),
    Metric("regret_ms", "chosen above best", "ms", decimals=0),
)


def _cells(scale: Scale) -> list[Cell]:
    return [
        cell
        for estimates in ESTIMATES
        for cell in cells(
            scale,
            [OURS],
            scale.rates_of(quick=RATES_QUICK, full=RATES),
            cluster=replace(TESTBED, clone_every=CLONE_EVERY),
            workload=replace(workload_of(scale), estimates=estimates),
            labels={"contender": f"{OURS.label}, {estimates}"},
        )
    ]


def _findings(rows: Rows, _scale: Scale) -> Findings:
    return Findings(
        paragraphs=[
            "Error is |predicted - actual| / actual of the chosen instance's E2E from the decision "
            "on, bias its signed form: below zero is too hopeful. What arrives later makes a "
            "prediction wrong that was right; in a copy nothing arrives later. "
            f"One decision in {CLONE_EVERY} was copied."
        ],
        tables=[metric_table(rows, metric) for metric in (ERROR, BIAS, *CLONES, *RIGHT)],
        panels=[line_panel(rows, metric) for metric in (ERROR, BIAS, *RIGHT[:2])],
    )


ACCURACY = Experiment(
    "accuracy",
    "prediction error, bias, and how often the better place was chosen",
    _cells,
    _findings,
)
