"""Other engines than the testbed's: a smaller batch, larger chunks, another model (the paper's
table 3), and the older scheduler that the paper had."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from evaluation.experiments.base import Experiment, Findings
from evaluation.experiments.capacities import as_figures, capacity_table
from evaluation.experiments.cells import Cell
from evaluation.experiments.compare import line_panel, metric_table, paired_table
from evaluation.experiments.contenders import FEW, OURS
from evaluation.experiments.metrics import E2E_MEAN, MAIN, TTFT_P99
from evaluation.experiments.rows import Rows
from evaluation.experiments.scale import Scale
from evaluation.experiments.testbed import INSTANCES, TESTBED, cells, workload_of
from evaluation.world.settings import InstanceSettings, instance

TRUE_LENGTHS = f"{OURS.label}, true lengths"


def _cells(one: InstanceSettings, rates: Sequence[float]) -> Callable[[Scale], list[Cell]]:
    cluster = replace(TESTBED, instances=(one,) * INSTANCES)
    quick = (rates[0], rates[len(rates) // 2], rates[-1])

    def make(scale: Scale) -> list[Cell]:
        chosen = scale.rates_of(quick=quick, full=rates)
        true_lengths = replace(workload_of(scale), estimates="oracle")
        return [
            *cells(scale, scale.compared(FEW), chosen, cluster=cluster),
            *cells(
                scale,
                [OURS],
                chosen,
                cluster=cluster,
                workload=true_lengths,
                labels={"contender": TRUE_LENGTHS},
            ),
        ]

    return make


def _findings(rows: Rows, _scale: Scale) -> Findings:
    rates = rows.values("rate")
    middle = rates[len(rates) // 2]
    return Findings(
        tables=[
            capacity_table(
                rows, "Capacity, requests a second", against=str(rows.values("contender")[0])
            ),
            *(metric_table(rows, metric) for metric in MAIN),
            paired_table(
                rows.where(rate=middle), OURS.label, MAIN, f"Seed by seed at {middle:g} a second"
            ),
        ],
        panels=[line_panel(rows, metric) for metric in (TTFT_P99, E2E_MEAN)],
        figures=as_figures(rows),
    )


def _experiment(name: str, line: str, one: InstanceSettings, rates: Sequence[float]) -> Experiment:
    return Experiment(name, line, _cells(one, rates), _findings, takes_policies=True)


BATCH = _experiment(
    "batch",
    "at most 24 requests in a batch",
    instance(limits={"max_num_seqs": 24}),
    (22.0, 24.0, 26.0, 28.0, 30.0),
)
CHUNK = _experiment(
    "chunk",
    "chunks of 2,048 tokens",
    instance(limits={"max_num_batched_tokens": 2048}),
    (26.0, 28.0, 30.0, 32.0, 34.0),
)
V0 = _experiment(
    "v0",
    "vLLM V0's scheduler, which the paper's artefact ran",
    instance(limits={"rules": "vllm-v0", "watermark": 0.01}),
    (28.0, 30.0, 31.0, 32.0, 34.0),
)
QWEN = _experiment(
    "qwen",
    "Qwen2-7B, whose KV entries are seven times smaller",
    instance("a30-qwen2-7b"),
    (54.0, 66.0, 72.0, 78.0, 84.0),
)
