"""From recorded requests to a load: fresh ids, marked as what they are, at the old times."""

from collections.abc import Sequence

import msgspec

from pipeline.errors import UsageError
from pipeline.messages import Request
from pipeline.replay.recorded import Recorded

ORIGIN = "replay_of"
"""Key of the request's metadata, which its result has too: `<client>.<id>` of the original."""
METADATA_MAX = 16


def fresh(record: Recorded, request_id: str) -> Request:
    """The recorded request under a new id. Where its metadata has room it says whose it was."""
    metadata = dict(record.request.metadata or {})
    if len(metadata) < METADATA_MAX or ORIGIN in metadata:
        metadata[ORIGIN] = f"{record.client}.{record.request.id}"
    return msgspec.structs.replace(
        record.request, id=request_id, metadata=metadata, sent_at_ms=None
    )


def plan(records: Sequence[Recorded], run: str, speed: float) -> tuple[list[Request], list[float]]:
    """The requests, and when each is due: seconds from the start, at `speed` times the old pace.

    Against one clock: an error of one gap does not move all that follow. Raises UsageError.
    """
    if not 0 < speed <= 1_000_000:
        raise UsageError(f"--speed {speed:g}: above 0, at most 1,000,000")
    ordered = sorted(records, key=lambda record: record.at_ms)
    first_ms = ordered[0].at_ms
    requests = [fresh(record, f"{run}-{n:06d}") for n, record in enumerate(ordered)]
    return requests, [(record.at_ms - first_ms) / 1000 / speed for record in ordered]
