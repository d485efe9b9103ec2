"""Latency, preemptions and throughput over the rate (the paper's figures 6 and 7, table 2)."""

from evaluation.experiments.base import PAPERS_REQUESTS, Experiment, Findings
from evaluation.experiments.capacity_of import SLO_MS
from evaluation.experiments.cells import Cell
from evaluation.experiments.compare import line_panel, metric_table, paired_table
from evaluation.experiments.contenders import CONTENDERS, OURS
from evaluation.experiments.metrics import (
    E2E_MEAN,
    E2E_P99,
    KV_FREE,
    KV_FREE_SPREAD,
    MAIN,
    PREEMPTIONS,
    THROUGHPUT,
    TTFT_MEAN,
    TTFT_P99,
)
from evaluation.experiments.rows import Rows
from evaluation.experiments.scale import Scale
from evaluation.experiments.testbed import RATES, RATES_QUICK, cells

SHOWN = (
    TTFT_MEAN,
    TTFT_P99,
    E2E_MEAN,
    E2E_P99,
    PREEMPTIONS,
    THROUGHPUT,
    KV_FREE,
    KV_FREE_SPREAD,
)


def sweep_cells(scale: Scale) -> list[Cell]:
    """All contenders at all rates; `capacity` reads the same runs."""
    return cells(scale, scale.compared(CONTENDERS), scale.rates_of(quick=RATES_QUICK, full=RATES))


def _findings(rows: Rows, _scale: Scale) -> Findings:
    highest = float(rows.values("rate")[-1])
    at = [rate for rate in map(float, rows.values("rate")) if rate >= highest - 8]
    slos = [slo_ms / 1000 for slo_ms in SLO_MS]
    return Findings(
        tables=[
            *(metric_table(rows, metric) for metric in SHOWN),
            *(
                paired_table(
                    rows.where(rate=rate), OURS.label, MAIN, f"Seed by seed at {rate:g} a second"
                )
                for rate in at
            ),
        ],
        panels=[
            line_panel(rows, metric, limits=slos if metric is TTFT_P99 else ()) for metric in SHOWN
        ],
    )


SWEEP = Experiment(
    "sweep",
    "all policies over the rate: TTFT, E2E, preemptions, throughput",
    sweep_cells,
    _findings,
    PAPERS_REQUESTS,
    takes_policies=True,
)
