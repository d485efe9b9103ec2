"""What the worker knows of vLLM's load: from the scheduler's own reports, or, where it gives none,
from vLLM's statistics."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pipeline.messages import STEPS_REPORTED_MAX, StepSample
from workers.engine import EngineStats
from workers.report import Report
from workers.reported import stats_of


@dataclass(frozen=True, slots=True)
class Counts:
    """vLLM's own statistics after a step."""

    running: int = 0
    waiting: int = 0
    kv_share: float = 0.0
    preemptions: int = 0


class VLLMState:
    """`key_of` gives the worker's key of an id that the engine knows, or None."""

    def __init__(self, key_of: Callable[[str], str | None]) -> None:
        self._key_of = key_of
        self._report: Report | None = None
        self._counts = Counts()
        self._samples: deque[StepSample] = deque(maxlen=STEPS_REPORTED_MAX)

    def reported(self, report: Report) -> None:
        """The scheduler's own word."""
        if report.step is not None:
            self._samples.append(report.step)
        self._report = report

    def counted(self, scheduler_stats: Any, iteration_stats: Any) -> None:
        """vLLM's statistics; either may be missing."""
        if scheduler_stats is not None:
            self._counts = replace(
                self._counts,
                running=scheduler_stats.num_running_reqs,
                waiting=scheduler_stats.num_waiting_reqs
                + getattr(scheduler_stats, "num_skipped_waiting_reqs", 0),
                kv_share=scheduler_stats.kv_cache_usage,
            )
        if iteration_stats is not None:
            lost = self._counts.preemptions + iteration_stats.num_preempted_reqs
            self._counts = replace(self._counts, preemptions=lost)

    def take_steps(self) -> list[StepSample]:
        taken = list(self._samples)
        self._samples.clear()
        return taken

    def stats(self, kv_blocks: int, unfinished: int) -> EngineStats:
        """`unfinished` is how many requests the worker has in the engine."""
        report, counts = self._report, self._counts
        if report is None:
            running = min(counts.running, unfinished)
            return EngineStats(
                running=running,
                waiting=max(0, unfinished - running),
                kv_blocks_used=round(counts.kv_share * kv_blocks),
                preemptions=counts.preemptions,
                source="reported",
            )
        return stats_of(report, kv_blocks, unfinished, self._key_of)
