"""What a scheduler's report says of the worker's own requests."""

from collections.abc import Callable, Mapping

from pipeline.messages import Phase
from workers.engine import EngineStats, Progress
from workers.report import Report, Row

KeyOf = Callable[[str], str | None]
"""The worker's key of an id that the engine knows; None of somebody else's request."""


def stats_of(report: Report, kv_blocks: int, unfinished: int, key_of: KeyOf) -> EngineStats:
    """`unfinished` is how many requests the worker has in the engine."""
    return EngineStats(
        running=len(report.running),
        # Those that the scheduler has not seen yet wait, too.
        waiting=max(report.waiting_count, unfinished - len(report.running)),
        kv_blocks_used=kv_blocks - report.blocks_free,
        preemptions=report.preemptions,
        steps=report.steps,
        progress=_progress(report, key_of),
        admission=report.admission,
    )


def _progress(report: Report, key_of: KeyOf) -> Mapping[str, Progress]:
    found: dict[str, Progress] = {}
    for rows, phase_of in ((report.running, _running), (report.waiting, _waiting)):
        for row in rows:
            key = key_of(row.request_id)
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
