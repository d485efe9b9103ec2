"""What a client saw of one request: the same for HTTP and for the bus, so that all are compared
by one measure. Times are from when the request was due, not from when it was sent."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Literal

from evaluation.rivals.workload import Arrival

Ending = Literal["whole", "cut", "error_event", "refused", "unreachable", "late"]
"""How an answer ended.

whole: with its reason and the end mark. cut: the stream just stopped, as if that were all.
error_event: the stream said that it failed. refused: an answer that says no, before any token.
unreachable: no connection. late: not within the deadline.
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as its client saw it."""

    id: str
    ending: Ending
    ttft_ms: float | None = None
    e2e_ms: float | None = None
    tokens: int = 0
    instance: str | None = None
    """Who answered, as far as it said so."""
    send_lag_ms: float = 0.0
    """How much later than due it was sent."""
    restarts: int = 0
    """How often the client was told that the answer begins anew."""
    detail: str = ""
    """What was said of a failure."""


Send = Callable[[Arrival, float], Coroutine[None, None, Seen]]
"""Sends one request that is due at a time of `time.monotonic()`, and follows it to its end. Not of
the event loop's clock: uvloop's counts whole milliseconds."""
