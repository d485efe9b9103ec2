"""Which score: all of the predictor's, with two and three choices and two sifted ones, against two
choices on the count in flight, Llumnix- and the paper's score with all predictors asked."""

from math import isfinite

from evaluation.experiments.base import Experiment, Findings
from evaluation.experiments.cells import Cell
from evaluation.experiments.compare import against_table, metric_table
from evaluation.experiments.contenders import (
    FAN_OUT,
    LEAST_OUTSTANDING_OF_TWO,
    LLUMNIX,
    PAPERS_SCORE,
    Contender,
    unique,
)
from evaluation.experiments.metrics import (
    E2E_MEAN,
    MAIN,
    NONE,
    PREEMPTIONS,
    SLOWDOWN_MEAN,
    TTFT_MEAN,
)
from evaluation.experiments.plots import BarPanel
from evaluation.experiments.rows import Rows
from evaluation.experiments.scale import Scale
from evaluation.experiments.statistics import paired_ratio
from evaluation.experiments.tables import Table
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
CHOICES = ("power_of_two", "power_of_two:3", "sifted")
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
                against_table(some, against.label, SHOWN, f"Seed by seed at {rate:g} a second")
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
        tables=[
            _never_worse(rows),
            *(metric_table(rows, metric) for metric in SHOWN),
            *tables,
        ],
        panels=panels,
    )


def _never_worse(rows: Rows) -> Table:
    """The bar that a default has to pass: it never loses to two choices on the count in flight."""
    rates = rows.values("rate")
    lines = []
    for name in rows.values("contender"):
        if name == LEAST_OUTSTANDING_OF_TWO.label:
            continue
        line = [str(name)]
        for metric in (TTFT_MEAN, E2E_MEAN):
            ratios = [
                paired_ratio(
                    rows.where(contender=name, rate=rate).by_seed(metric.figure),
                    rows.where(contender=LEAST_OUTSTANDING_OF_TWO.label, rate=rate).by_seed(
                        metric.figure
                    ),
                )
                for rate in rates
            ]
            worst = max(ratio.high for ratio in ratios)
            line.append(f"{worst:.3f}" if isfinite(worst) else NONE)
        lines.append(line)
    return Table(
        f"At worst, against {LEAST_OUTSTANDING_OF_TWO.label}",
        ["contender", TTFT_MEAN.title, E2E_MEAN.title],
        lines,
        "The highest upper end, over the rates, of the 95 % interval of the ratio seed by seed: "
        "what is at most 1.03 is not worse. One seed has no interval.",
    )


SCORE = Experiment(
    "score", "every score of the predictor, two, three and sifted choices", _cells, _findings
)
