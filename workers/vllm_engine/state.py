"""What the worker knows of vLLM's load: from the scheduler's own reports, or, where it gives none,
from vLLM's statistics."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline.messages import STEPS_REPORTED_MAX, Phase, StepSample
from workers.engine import EngineStats, Progress
from workers.vllm_engine.report import Report, Row


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
        return EngineStats(
            running=len(report.running),
            # Those that the scheduler has not seen yet wait, too.
            waiting=max(report.waiting_count, unfinished - len(report.running)),
            kv_blocks_used=kv_blocks - report.blocks_free,
            preemptions=report.preemptions,
            steps=report.steps,
            progress=self._progress(report),
        )

    def _progress(self, report: Report) -> Mapping[str, Progress]:
        found: dict[str, Progress] = {}
        for rows, phase_of in ((report.running, _running), (report.waiting, _waiting)):
            for row in rows:
                key = self._key_of(row.request_id)
                if key is not None:
                    found[key] = Progress(
                        phase_of(row), row.computed_tokens, row.generated_tokens, row.prompt_tokens
                    )
        return found


def _running(row: Row) -> Phase:
    """One that was preempted computes its whole past again before it decodes."""
    decodes_from = row.prompt_tokens + row.generated_tokens - 1
    return (
        "decoding" if row.generated_tokens and row.computed_tokens >= decodes_from else "prefilling"
    )


def _waiting(row: Row) -> Phase:
    return "preempted" if row.preemptions else "waiting"
