"""How wrong lengths and predictions may be (the paper's figure 12: a 4 x 4 map at 32 a second)."""

from dataclasses import replace

from evaluation.experiments.base import Experiment, Findings
from evaluation.experiments.cells import Cell
from evaluation.experiments.compare import several_table
from evaluation.experiments.contenders import OURS
from evaluation.experiments.metrics import E2E_MEAN, MAIN, TTFT_MEAN, Metric, bracketed
from evaluation.experiments.plots import HeatPanel
from evaluation.experiments.rows import Rows
from evaluation.experiments.scale import Scale
from evaluation.experiments.statistics import paired_ratio
from evaluation.experiments.tables import Table
from evaluation.experiments.testbed import SATURATED, TESTBED, cells, workload_of

PERCENTS = (0.0, 25.0, 50.0, 100.0)
PERCENTS_QUICK = (0.0, 100.0)


def _cells(scale: Scale) -> list[Cell]:
    percents = scale.pick(quick=PERCENTS_QUICK, full=PERCENTS)
    return [
        cell
        for length in percents
        for latency in percents
        for cell in cells(
            scale,
            [OURS],
            scale.rates_of(quick=[SATURATED], full=[SATURATED])[-1:],
            cluster=replace(TESTBED, latency_noise=latency / 100),
            workload=replace(workload_of(scale), estimates=f"noise:{length:g}"),
            labels={"length": length, "latency": latency, "noise": f"{length:g}, {latency:g}"},
        )
    ]


def _findings(rows: Rows, _scale: Scale) -> Findings:
    worst = max(_against_none(rows, E2E_MEAN).items(), key=lambda item: item[1][0])
    return Findings(
        paragraphs=[
            "Lengths are the truth times 1 + N(0, length %), predicted costs are multiplied by "
            "1 + N(0, latency %), both factors within 0.1 and 5. Unlike the paper's, the length "
            "noise stays with a request while it runs, and 0 % means the true length. Worst cell "
            f"for mean E2E: {worst[0]} %, {worst[1][1]} times that without noise."
        ],
        tables=[
            _map_table(rows, TTFT_MEAN),
            _map_table(rows, E2E_MEAN),
            several_table(rows, MAIN, "Length and latency noise, %", down="noise"),
        ],
        panels=[_map_panel(rows, TTFT_MEAN), _map_panel(rows, E2E_MEAN)],
    )


def _against_none(rows: Rows, metric: Metric) -> dict[str, tuple[float, str]]:
    """The paired ratio of each cell to that without noise."""
    none = rows.where(length=0.0, latency=0.0).by_seed(metric.figure)
    found = {}
    for noise in rows.values("noise"):
        ratio = paired_ratio(rows.where(noise=noise).by_seed(metric.figure), none)
        found[str(noise)] = ratio.mean, bracketed(ratio, 3)
    return found


def _map_table(rows: Rows, metric: Metric) -> Table:
    ratios = _against_none(rows, metric)
    latencies = [f"{x:g}" for x in rows.values("latency")]
    return Table(
        f"{metric.title}, times that without noise, seed by seed",
        ["length %", *(f"latency {latency} %" for latency in latencies)],
        [
            [f"{length:g}", *(ratios[f"{length:g}, {latency}"][1] for latency in latencies)]
            for length in rows.values("length")
        ],
    )


def _map_panel(rows: Rows, metric: Metric) -> HeatPanel:
    ratios = _against_none(rows, metric)
    lengths = [f"{x:g}" for x in rows.values("length")]
    latencies = [f"{x:g}" for x in rows.values("latency")]
    return HeatPanel(
        f"{metric.title} / without noise",
        "latency noise, %",
        "length noise, %",
        latencies,
        lengths,
        [[ratios[f"{length}, {latency}"][0] for latency in latencies] for length in lengths],
    )


NOISE = Experiment("noise", "wrong lengths and wrong predictions, a map of both", _cells, _findings)
