"""Bursts: gamma gaps from bursty to even (the paper's figure 11), and traces at their own times."""

from dataclasses import replace

from evaluation.experiments.base import Experiment, Findings
from evaluation.experiments.cells import Cell
from evaluation.experiments.compare import line_panel, metric_table, paired_table
from evaluation.experiments.contenders import FEW, OURS
from evaluation.experiments.metrics import E2E_MEAN, MAIN, TTFT_MEAN, TTFT_P99
from evaluation.experiments.rows import Rows
from evaluation.experiments.scale import Scale
from evaluation.experiments.testbed import KNEE, SATURATED, cells, workload_of

BURSTINESS = (0.25, 0.5, 1.0, 2.0)
TRACES = {"azure-conv-trace": 20.0, "servegen-mlarge-trace": 48.0}
"""With the mean rate at which each loads this cluster about as the testbed's knee does."""


def _cells(scale: Scale) -> list[Cell]:
    rates = scale.rates_of(quick=[SATURATED], full=[KNEE[0], SATURATED])
    found = [
        cell
        for alpha in BURSTINESS
        for cell in cells(
            scale,
            scale.compared(FEW),
            rates,
            workload=replace(workload_of(scale), burstiness=alpha),
            labels={"arrivals": f"gamma, shape {alpha:g}", "alpha": alpha},
        )
    ]
    if scale.folder is not None:
        for name, rate in TRACES.items():
            found += cells(
                scale,
                scale.compared(FEW),
                [rate],
                workload=replace(workload_of(scale), name=name),
                labels={"arrivals": name, "alpha": 0.0},
            )
    return found


def _findings(rows: Rows, scale: Scale) -> Findings:
    tables = []
    for arrivals in rows.values("arrivals"):
        some = rows.where(arrivals=arrivals)
        for rate in some.values("rate"):
            tables.append(
                paired_table(
                    some.where(rate=rate),
                    OURS.label,
                    MAIN,
                    f"{arrivals}, {rate:g} a second, seed by seed",
                )
            )
    gamma = Rows(row for row in rows if row["alpha"])
    highest = gamma.where(rate=gamma.values("rate")[-1])
    paragraphs = [
        "Gaps between arrivals are gamma distributed: shape 1 is Poisson, less is burstier."
    ]
    if scale.folder is None:
        paragraphs.append(f"Without a data folder the traces ({', '.join(TRACES)}) were not run.")
    return Findings(
        paragraphs=paragraphs,
        tables=[
            *(metric_table(highest, metric, across="alpha") for metric in MAIN),
            *tables,
        ],
        panels=[
            line_panel(highest, metric, across="alpha", x_label="shape of the gaps")
            for metric in (TTFT_MEAN, TTFT_P99, E2E_MEAN)
        ],
    )


BURST = Experiment(
    "burst",
    "bursty arrivals: gamma gaps, and recorded traces",
    _cells,
    _findings,
    takes_policies=True,
)
