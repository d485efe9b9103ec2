"""Placing well against moving later: Llumnix's placement with and without live migration (the
paper's figure 8), on its eight A100s."""

from dataclasses import replace

from evaluation.experiments.base import Experiment, Findings
from evaluation.experiments.cells import Cell
from evaluation.experiments.compare import line_panel, metric_table, paired_table
from evaluation.experiments.contenders import LLUMNIX, OURS
from evaluation.experiments.metrics import E2E_MEAN, MAIN, THROUGHPUT, TPOT, TTFT_P99, Metric
from evaluation.experiments.rows import Rows
from evaluation.experiments.scale import Scale
from evaluation.experiments.testbed import TESTBED, cells
from evaluation.world.settings import MigrationSettings, instance

INSTANCES = 8
PROFILE = "a100-llama-2-7b"
RATES = (36.0, 72.0, 84.0, 96.0)
"""The paper's highest, and those at which these instances run out of blocks."""
RATES_QUICK = (36.0, 96.0)
MOVES = Metric("migrations", "migrations", "", decimals=0)
KINDS: dict[str, MigrationSettings | None] = {
    LLUMNIX.label: None,
    "llumnix, migration": MigrationSettings(),
    "llumnix, costly migration": MigrationSettings(every_ms=200.0, stall_ms=200.0),
}
"""The last moves five times as often and stops both engines ten times as long."""


def _cells(scale: Scale) -> list[Cell]:
    rates = scale.rates_of(quick=RATES_QUICK, full=RATES)
    cluster = replace(TESTBED, instances=(instance(PROFILE),) * INSTANCES)
    return [
        *(
            cell
            for name, migration in KINDS.items()
            for cell in cells(
                scale,
                [LLUMNIX],
                rates,
                cluster=replace(cluster, migration=migration),
                labels={"contender": name},
            )
        ),
        *cells(scale, [OURS], rates, cluster=cluster),
    ]


def _findings(rows: Rows, _scale: Scale) -> Findings:
    shown = (*MAIN, TPOT, THROUGHPUT, MOVES)
    return Findings(
        tables=[
            *(metric_table(rows, metric) for metric in shown),
            *(
                paired_table(
                    rows.where(rate=rate), OURS.label, MAIN, f"Seed by seed at {rate:g} a second"
                )
                for rate in rows.values("rate")
            ),
        ],
        panels=[line_panel(rows, metric) for metric in (TTFT_P99, E2E_MEAN, THROUGHPUT, MOVES)],
    )


MIGRATION = Experiment(
    "migration", "Llumnix with live migration against placing once", _cells, _findings
)
