"""What a worker tells Prometheus: requests when they end, its engine once a second."""

from pipeline.messages import Instance, Result, Trace
from pipeline.metrics import (
    E2E_LATENCY,
    GENERATION_TOKENS,
    INBOX_PENDING,
    KV_CACHE_USAGE,
    PREEMPTIONS,
    PROMPT_TOKENS,
    REQUESTS_RUNNING,
    REQUESTS_WAITING,
    RESULTS,
    STAGE_SECONDS,
    TIME_PER_OUTPUT_TOKEN,
    TIME_TO_FIRST_TOKEN,
)

STAGES = {
    "request_queue": ("accepted_at_ms", "tagger_received_at_ms"),
    "tagger": ("tagger_received_at_ms", "tagged_at_ms"),
    "tagged_queue": ("tagged_at_ms", "dispatcher_received_at_ms"),
    "probes": ("dispatcher_received_at_ms", "probed_at_ms"),
    "placement": ("probed_at_ms", "dispatched_at_ms"),
    "inbox": ("dispatched_at_ms", "worker_received_at_ms"),
    "first_token": ("engine_accepted_at_ms", "first_token_at_ms"),
    "generation": ("first_token_at_ms", "finished_at_ms"),
}
"""Stage of a request: the instants of its trace between which it is there."""


def stage_seconds(trace: Trace) -> dict[str, float]:
    """Time in each stage that the trace covers, in seconds. Clocks of two hosts may disagree: a
    stage that would end before it began took nothing."""
    found = {}
    for stage, (begin, end) in STAGES.items():
        began, ended = getattr(trace, begin), getattr(trace, end)
        if began is not None and ended is not None:
            found[stage] = max(0.0, ended - began) / 1000
    return found


def count_result(result: Result) -> None:
    """A request ended here and its result is stored. Latencies are of those that were answered."""
    RESULTS.labels("worker", result.status).inc()
    usage = result.usage
    if usage is not None:
        PROMPT_TOKENS.inc(usage.prompt_tokens)
        GENERATION_TOKENS.inc(usage.completion_tokens)
    if result.status != "done":
        return
    for stage, seconds in stage_seconds(result.trace).items():
        STAGE_SECONDS.labels(stage).observe(seconds)
    trace = result.trace
    accepted, first, finished = trace.accepted_at_ms, trace.first_token_at_ms, trace.finished_at_ms
    if accepted is None or finished is None:
        return
    E2E_LATENCY.observe(max(0.0, finished - accepted) / 1000)
    if first is None:
        return
    TIME_TO_FIRST_TOKEN.observe(max(0.0, first - accepted) / 1000)
    if usage is not None and usage.completion_tokens > 1:
        TIME_PER_OUTPUT_TOKEN.observe((finished - first) / 1000 / (usage.completion_tokens - 1))


class EngineGauges:
    """One boot's engine. Preemptions come as a sum since the engine's start."""

    def __init__(self) -> None:
        self._preemptions = 0

    def show(self, seen: Instance) -> None:
        """As its heartbeat has it."""
        REQUESTS_RUNNING.set(seen.running)
        REQUESTS_WAITING.set(seen.waiting)
        INBOX_PENDING.set(seen.inbox_pending)
        KV_CACHE_USAGE.set(seen.kv_blocks_used / max(1, seen.limits.kv_blocks))
        # A sum that fell is of an engine that was started anew.
        new = seen.preemptions - self._preemptions
        PREEMPTIONS.inc(new if new >= 0 else seen.preemptions)
        self._preemptions = seen.preemptions
