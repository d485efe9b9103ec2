"""How many predictors to ask, at random (the paper's figure 9), and what sifting them is worth."""

from dataclasses import replace

from evaluation.experiments.base import Experiment, Findings
from evaluation.experiments.capacities import as_figures, capacity_table
from evaluation.experiments.cells import Cell
from evaluation.experiments.compare import line_panel, metric_table, paired_table
from evaluation.experiments.contenders import OURS
from evaluation.experiments.metrics import DECISION_CPU, E2E_MEAN, MAIN, TTFT_P99
from evaluation.experiments.rows import Rows
from evaluation.experiments.scale import Scale
from evaluation.experiments.testbed import INSTANCES, KNEE, KNEE_QUICK, cells

POLICIES = {
    1: "power_of_two:1",
    2: "power_of_two",
    3: "power_of_two:3",
    4: "power_of_two:4",
    8: "power_of_two:8",
    INSTANCES: "fan_out",
}
"""By the number of choices at random, each by the name under which other experiments run it."""
NOT_AT_RANDOM = 0.0
"""k of the default, which is beside them."""


def _cells(scale: Scale) -> list[Cell]:
    rates = scale.rates_of(quick=KNEE_QUICK, full=(*KNEE, 34.0))
    by_choices = [
        cell
        for choices, policy in POLICIES.items()
        for cell in cells(
            scale,
            [replace(OURS, policy=policy)],
            rates,
            labels={"contender": f"k = {choices}", "k": float(choices)},
        )
    ]
    return by_choices + cells(scale, [OURS], rates, labels={"k": NOT_AT_RANDOM})


def _findings(rows: Rows, _scale: Scale) -> Findings:
    highest = float(rows.values("rate")[-1])
    at_random = Rows(row for row in rows if row["k"] != NOT_AT_RANDOM)
    return Findings(
        tables=[
            capacity_table(rows, "Capacity by the number of choices", against="k = 2"),
            *(metric_table(rows, metric) for metric in (*MAIN, DECISION_CPU)),
            paired_table(
                rows.where(rate=highest), OURS.label, MAIN, f"Seed by seed at {highest:g} a second"
            ),
        ],
        panels=[
            line_panel(at_random, metric, down="rate", across="k", x_label="choices k")
            for metric in (TTFT_P99, E2E_MEAN)
        ],
        figures=as_figures(rows),
    )


CHOICES = Experiment(
    "choices", "1, 2, 3, 4, 8 and all 12 predictors asked, and the default", _cells, _findings
)
