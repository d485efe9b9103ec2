"""Which score: all of the predictor's, with two candidates at random and sifted, against two choices
on the count in flight, Llumnix- and the paper's score with all predictors asked."""

from evaluation.experiments.base import Experiment, Findings
from evaluation.experiments.cells import Cell
from evaluation.experiments.compare import metric_table, paired_table
from evaluation.experiments.contenders import (
    FAN_OUT,
    LEAST_OUTSTANDING_OF_TWO,
    LLUMNIX,
    PAPERS_SCORE,
    Contender,
    unique,
)
from evaluation.experiments.metrics import E2E_MEAN, MAIN, PREEMPTIONS, SLOWDOWN_MEAN, TTFT_MEAN
from evaluation.experiments.plots import BarPanel
from evaluation.experiments.rows import Rows
from evaluation.experiments.scale import Scale
from evaluation.experiments.testbed import KNEE, cells
from predictor.scores import DEFAULT_SCORE

SCORES = (
    PAPERS_SCORE,
    "ttft",
    "preemption_averse:250",
    "preemption_averse:500",
    "preemption_averse:1000",
    "marginal:0.5",
    "marginal:1",
)
"""`slo` is not here: without deadlines it orders as e2e does."""
SCORES_QUICK = (PAPERS_SCORE, "ttft", "preemption_averse:1000", "marginal:0.5")
CHOICES = ("power_of_two", "sifted")
SHOWN = (*MAIN, SLOWDOWN_MEAN)


def _cells(scale: Scale) -> list[Cell]:
    scores = scale.pick(quick=SCORES_QUICK, full=SCORES)
    contenders = unique(
        (
            LEAST_OUTSTANDING_OF_TWO,
            LLUMNIX,
            Contender("fan_out", PAPERS_SCORE),
            FAN_OUT,
            *(Contender(policy, score) for policy in CHOICES for score in (*scores, DEFAULT_SCORE)),
        )
    )
    return cells(scale, contenders, scale.rates_of(quick=[KNEE[1]], full=KNEE[1:]))


def _findings(rows: Rows, _scale: Scale) -> Findings:
    tables, panels = [], []
    for rate in rows.values("rate"):
        some = rows.where(rate=rate)
        for against in (LEAST_OUTSTANDING_OF_TWO, LLUMNIX):
            tables.append(
                paired_table(
                    some, against.label, SHOWN, f"{against.label} against each, {rate:g} a second"
                )
            )
    names = [str(name) for name in some.values("contender")]
    for metric in (TTFT_MEAN, E2E_MEAN, PREEMPTIONS):
        panels.append(
            BarPanel(
                f"{metric.title}, {rate:g} a second",
                metric.heading,
                names,
                [metric.in_unit(some.where(contender=n).mean(metric.figure)) for n in names],
            )
        )
    return Findings(
        paragraphs=[f"The predictor's default is {DEFAULT_SCORE}."],
        tables=[*(metric_table(rows, metric) for metric in SHOWN), *tables],
        panels=panels,
    )


SCORE = Experiment(
    "score", "every score of the predictor, two candidates at random or sifted", _cells, _findings
)
