"""What a running stack has just finished, as a length table: lengths, times and estimates.

Read from the stream of results by direct get, which leaves nothing behind on the server and takes
nothing from anybody. It holds the last 15 minutes (docs/operations.md has the limits).
"""

from typing import NamedTuple

import msgspec
import numpy as np
import structlog

from evaluation.workloads.lengths import EstimateTable, LengthTable
from pipeline.bus import Bus
from pipeline.bus.topology import RESULTS_MAX
from pipeline.codec import decode
from pipeline.errors import UsageError
from pipeline.messages import LengthEstimate, Trace, Usage

log = structlog.get_logger()

READ_AT_ONCE = 256
"""Results carry their text: a bound on what is held at a time."""


class _Finished(msgspec.Struct, frozen=True):
    """What a workload needs of a Result; the text is not even decoded."""

    status: str
    model: str
    finish_reason: str | None = None
    usage: Usage | None = None
    estimate: LengthEstimate | None = None
    trace: Trace = Trace()


class _Row(NamedTuple):
    at_ms: float
    prompt_tokens: int
    response_tokens: int
    max_tokens: int
    quantiles: tuple[float, float, float]


async def read_history(
    bus: Bus, *, client: str = "*", model: str | None = None, limit: int = RESULTS_MAX
) -> LengthTable:
    """The oldest `limit` stored results, in the order in which their requests were accepted.

    `client` and `model` (its slug) narrow it. Results that ended in an error, and those without
    token counts, estimate or time of acceptance are left out, and counted in the log. An answer
    that ended by `length` keeps its end as `max_tokens`: how long it wanted to be, nobody knows.

    Raises UsageError for a limit out of range and where nothing was found, BusError from the bus.
    """
    if not 1 <= limit <= RESULTS_MAX:
        raise UsageError(f"limit: {limit} given, must be 1 to {RESULTS_MAX}")
    stream, subject = bus.subjects.results_stream, bus.subjects.result(client, "*")
    rows: list[_Row] = []
    start, seen = 1, 0
    while seen < limit:
        most = min(READ_AT_ONCE, limit - seen)
        stored = await bus.jetstream.read(stream, subject, start=start, limit=most)
        if not stored:
            break
        results = [decode(message.data, _Finished) for message in stored]
        wanted = [one for one in results if model is None or one.model == model]
        rows += [row for one in wanted if (row := _row(one)) is not None]
        seen += len(stored)
        start = stored[-1].sequence + 1
    log.info("history_read", results=seen, taken=len(rows))
    if not rows:
        raise UsageError(f"{stream}: no request that finished among {seen} results")
    rows.sort(key=lambda row: row.at_ms)
    at_ms, prompt_tokens, response_tokens, max_tokens, quantiles = zip(*rows, strict=True)
    return LengthTable(
        name="history",
        prompt_tokens=np.array(prompt_tokens, dtype=np.int64),
        response_tokens=np.array(response_tokens, dtype=np.int64),
        at_ms=np.array(at_ms) - at_ms[0],
        max_tokens=np.array(max_tokens, dtype=np.int64),
        estimates=EstimateTable(np.array(quantiles), source="recorded"),
    )


def _row(finished: _Finished) -> _Row | None:
    """None where the result lacks what a workload needs."""
    usage, said, at_ms = finished.usage, finished.estimate, finished.trace.accepted_at_ms
    if finished.status != "done" or usage is None or said is None or at_ms is None:
        return None
    if usage.prompt_tokens < 1 or usage.completion_tokens < 1:
        return None
    cut = usage.completion_tokens if finished.finish_reason == "length" else 0
    quantiles = (said.p10, said.p50, said.p90)
    return _Row(at_ms, usage.prompt_tokens, usage.completion_tokens, cut, quantiles)
