"""The highest rate at which P99 TTFT keeps its SLO (the paper's headline)."""

from evaluation.experiments.base import PAPERS_REQUESTS, Experiment, Findings
from evaluation.experiments.capacities import as_figures, capacities, capacity_table
from evaluation.experiments.capacity_of import SLO_MS
from evaluation.experiments.compare import line_panel
from evaluation.experiments.contenders import LLUMNIX
from evaluation.experiments.metrics import TTFT_P99
from evaluation.experiments.plots import BarPanel
from evaluation.experiments.rows import Rows
from evaluation.experiments.scale import Scale
from evaluation.experiments.sweep import sweep_cells


def _findings(rows: Rows, _scale: Scale) -> Findings:
    contenders = [str(name) for name in rows.values("contender")]
    return Findings(
        tables=[
            capacity_table(rows, "Capacity, requests a second", against=_reference(contenders))
        ],
        panels=[
            *(_bars(rows, slo_ms) for slo_ms in SLO_MS),
            line_panel(rows, TTFT_P99, limits=[slo_ms / 1000 for slo_ms in SLO_MS]),
        ],
        figures=as_figures(rows),
    )


def _bars(rows: Rows, slo_ms: float) -> BarPanel:
    found = capacities(rows, slo_ms)
    return BarPanel(
        f"Capacity, P99 TTFT ≤ {slo_ms / 1000:g} s",
        "requests a second",
        list(found),
        [one.interval for one in found.values()],
    )


def _reference(contenders: list[str]) -> str:
    """The paper compares with Llumnix-."""
    return LLUMNIX.label if LLUMNIX.label in contenders else contenders[0]


CAPACITY = Experiment(
    "capacity",
    "the highest rate with P99 TTFT within 3 s and 10 s",
    sweep_cells,
    _findings,
    PAPERS_REQUESTS,
    takes_policies=True,
)
