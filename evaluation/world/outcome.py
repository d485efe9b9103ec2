"""What a run was like: a row for every request, and the figures that people compare."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluation.world.clones import Lived
from evaluation.world.dispatcher import SimulatedDispatcher
from evaluation.world.instance import SimulatedInstance
from evaluation.world.job import Job
from evaluation.world.occupancy import Occupancy

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run. Columns have a row for every request, in order of arrival; times are ms, from the
    client's publish on, the pipeline's own delays included."""

    arrived_at_ms: Column
    ttft_ms: Column
    e2e_ms: Column
    prompt_tokens: Column
    response_tokens: Column
    instance: Column
    preemptions: Column
    """That the request itself suffered."""
    alone_ms: Column
    """Its E2E on the idle engine of the first instance, without noise and routing."""
    predicted_e2e_ms: Column
    """Of the chosen instance, from the decision on; NaN where none was made."""
    decided_at_ms: Column
    preemptions_total: int
    migrations_total: int
    probes: int
    decision_s: float
    """CPU time of all decisions, predictions included, on the machine that ran this."""
    kv_free: float
    """Share of the KV blocks that was free while requests came, mean over instances and time."""
    kv_free_spread: float
    """Standard deviation of that share over the instances, mean over time."""
    duration_ms: float
    """Until the last request finished."""
    steps: int
    lived: Sequence[Lived]
    """Of decisions whose candidates were copied."""

    def summary(self) -> dict[str, float]:
        """The run in numbers."""
        tpot = (self.e2e_ms - self.ttft_ms) / np.maximum(1, self.response_tokens - 1)
        slowdown = self.e2e_ms / self.alone_ms
        counts = np.bincount(self.instance.astype(int))
        figures = {
            "requests": float(len(self.ttft_ms)),
            "ttft_mean_ms": mean(self.ttft_ms),
            "ttft_p50_ms": percentile(self.ttft_ms, 50),
            "ttft_p99_ms": percentile(self.ttft_ms, 99),
            "e2e_mean_ms": mean(self.e2e_ms),
            "e2e_p50_ms": percentile(self.e2e_ms, 50),
            "e2e_p99_ms": percentile(self.e2e_ms, 99),
            "tpot_mean_ms": mean(tpot),
            "slowdown_mean": mean(slowdown),
            "slowdown_p99": percentile(slowdown, 99),
            "preemptions": float(self.preemptions_total),
            "kv_free": self.kv_free,
            "kv_free_spread": self.kv_free_spread,
            "migrations": float(self.migrations_total),
            "throughput_tokens_s": float(
                (self.prompt_tokens.sum() + self.response_tokens.sum())
                / max(self.duration_ms, 1e-9)
                * 1000
            ),
            "requests_most_least": float(counts.max() - counts.min()),
            "decision_cpu_ms": self.decision_s * 1000 / max(1, len(self.ttft_ms)),
            "probes": float(self.probes),
        }
        predicted = self.predicted_e2e_ms
        if not np.isnan(predicted).all():
            actual = self.arrived_at_ms + self.e2e_ms - self.decided_at_ms
            error = (predicted - actual) / actual
            error = error[~np.isnan(error)]
            figures["e2e_error_median"] = percentile(np.abs(error), 50)
            figures["e2e_error_mean"] = mean(np.abs(error))
            figures["e2e_bias_median"] = percentile(error, 50)
        return figures


def outcome_of(
    jobs: Sequence[Job],
    instances: Sequence[SimulatedInstance],
    dispatchers: Sequence[SimulatedDispatcher],
    lived: Sequence[Lived],
    occupancy: Occupancy,
    now_ms: float,
) -> Outcome:
    """The record of jobs that have all finished."""

    def column(values: Sequence[float]) -> Column:
        return np.array(values, dtype=np.float64)

    arrived = column([job.arrival.at_ms for job in jobs])
    first = instances[0]
    return Outcome(
        arrived_at_ms=arrived,
        ttft_ms=column([job.first_token_at_ms for job in jobs]) - arrived,
        e2e_ms=column([job.finished_at_ms for job in jobs]) - arrived,
        prompt_tokens=column([job.arrival.prompt_tokens for job in jobs]),
        response_tokens=column([job.arrival.response_tokens for job in jobs]),
        instance=column([job.instance for job in jobs]),
        preemptions=column([job.preemptions for job in jobs]),
        alone_ms=column([first.alone_ms(job.arrival) for job in jobs]),
        predicted_e2e_ms=column(
            [job.prediction.e2e_ms if job.prediction is not None else np.nan for job in jobs]
        ),
        decided_at_ms=column([job.decided_at_ms for job in jobs]),
        preemptions_total=sum(job.preemptions for job in jobs),
        migrations_total=sum(job.migrations for job in jobs),
        probes=sum(dispatcher.probes for dispatcher in dispatchers),
        decision_s=sum(dispatcher.decision_s for dispatcher in dispatchers),
        kv_free=occupancy.free(),
        kv_free_spread=occupancy.spread(),
        duration_ms=now_ms,
        steps=sum(instance.steps for instance in instances),
        lived=lived,
    )


def mean(values: Column) -> float:
    return float(np.mean(values))


def percentile(values: Column, percent: float) -> float:
    return float(np.percentile(values, percent))
