"""Whole workloads by name: lengths, arrival times and estimates put together, by one seed.

A name is a source of lengths with arrivals at a rate, or, with `-trace` after it, a stretch of the
source's own requests at their own times. Workloads of one seed are paired: lengths, their order
and the errors of their estimates are the same at every rate and burstiness, and gaps are the same
random numbers, scaled. Except in a trace, more requests begin with those that fewer would be.
"""

from functools import lru_cache
from pathlib import Path

import numpy as np

from evaluation.workloads.arrivals import REQUESTS_MAX, gamma_arrivals, recorded_arrivals, truncated
from evaluation.workloads.base import Arrival, compose
from evaluation.workloads.estimates import parse_estimates
from evaluation.workloads.lengths import LengthTable, sample, stretch
from evaluation.workloads.sources import SOURCES, data_folder
from evaluation.workloads.synthetic import synthetic_lengths
from pipeline.errors import UsageError

TRACE = "-trace"
TABLES_KEPT = 8
PRESETS = {
    "synthetic": "log-normal mixtures close to sharegpt-llama2; needs no file",
    "sharegpt-llama2": "ShareGPT's first turns, answered by Llama-2-7B: the paper's requests",
    "sharegpt": "ShareGPT's first turns with their recorded answers",
    "sharegpt-chat": "ShareGPT's turns, all earlier ones in the prompt",
    "sharegpt-tagged": "ShareGPT prompts with the shipped length model's estimates (recorded)",
    "arxiv": "summaries of arXiv papers: long prompts",
    "azure-conv": "Azure's conversations, November 2023",
    "azure-conv-trace": "the same, at its own times",
    "mooncake": "Kimi's conversations: very long prompts",
    "mooncake-trace": "the same, at its own times",
    "servegen-mlarge": "Alibaba's large model, drawn from ServeGen's fits",
    "servegen-mlarge-trace": "the same, at its own times: bursty",
    "burstgpt": "BurstGPT's campus users",
    "burstgpt-trace": "the same, at its own times: bursty",
}
"""Every name that `make_workload` takes, with one line."""


def make_workload(
    name: str,
    *,
    requests: int,
    rate: float,
    seed: int,
    burstiness: float = 1.0,
    estimates: str = "tagger-like",
    max_model_len: int = 4096,
    folder: Path | None = None,
    duration_ms: float | None = None,
) -> list[Arrival]:
    """`requests` arrivals of the workload `name` (PRESETS) at a mean `rate` per second.

    `burstiness` is the shape of the gaps' gamma distribution (arrivals.py); a trace has its own.
    `estimates` is one of ESTIMATES. Requests longer than `max_model_len` are left out. Files are
    looked for in `folder`, else in the folder that ASTROLABE_DATA names. Requests that would come
    after `duration_ms` are left out.

    Raises UsageError: a name that is not there, a value out of its limits, a file that is missing.
    """
    if name not in PRESETS:
        raise UsageError(f"workload {name!r}: not one of {', '.join(PRESETS)}")
    table = load_lengths(name.removesuffix(TRACE), folder)
    return workload_of(
        table,
        requests=requests,
        rate=rate,
        seed=seed,
        burstiness=burstiness,
        estimates=estimates,
        max_model_len=max_model_len,
        trace=name.endswith(TRACE),
        duration_ms=duration_ms,
    )


def load_lengths(name: str, folder: Path | None = None) -> LengthTable:
    """The table behind a name without `-trace`, read once. Raises UsageError."""
    if name == "synthetic":
        return synthetic_lengths()
    return _read(name, data_folder(folder))


def workload_of(
    table: LengthTable,
    *,
    requests: int,
    rate: float | None,
    seed: int,
    burstiness: float = 1.0,
    estimates: str = "tagger-like",
    max_model_len: int = 4096,
    trace: bool = False,
    duration_ms: float | None = None,
) -> list[Arrival]:
    """The same for a table of one's own, such as `history.read_history` gives.

    With `trace` the rows keep their times; `rate` None leaves the pace as it was recorded.
    """
    if not 1 <= requests <= REQUESTS_MAX:
        raise UsageError(f"requests: {requests} given, must be 1 to {REQUESTS_MAX}")
    if seed < 0:
        raise UsageError(f"seed: {seed} given, must be at least 0")
    for_lengths, for_arrivals, for_estimates = (
        np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3)
    )
    estimator = parse_estimates(estimates)
    population = table.fitting(max_model_len)
    if trace:
        if burstiness != 1.0:
            raise UsageError(f"burstiness: {table.name} as a trace has its own")
        rows, recorded_ms = stretch(population, requests, for_lengths)
        at_ms = recorded_arrivals(recorded_ms, rate=rate)
    else:
        if rate is None:
            raise UsageError("rate: must be given, unless the table's own times are kept")
        rows = sample(population, requests, for_lengths)
        at_ms = gamma_arrivals(for_arrivals, rate=rate, burstiness=burstiness, requests=requests)
    at_ms = truncated(at_ms, duration_ms=duration_ms)
    if not len(at_ms):
        raise UsageError(f"duration_ms: {duration_ms:g} ends before the first request")
    rows = rows.take(np.arange(len(at_ms)))
    return compose(rows, at_ms, estimator.estimate(rows, population, for_estimates))


@lru_cache(maxsize=TABLES_KEPT)
def _read(name: str, folder: Path) -> LengthTable:
    """Tables are read-only, so the workloads of many seeds share one. A file that changes while
    the process runs is not read again."""
    return SOURCES[name].read(folder)
