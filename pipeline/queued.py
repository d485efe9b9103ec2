"""What the headers of a dispatched request say: all that others need without its body.

INBOX republishes them on `queued.<instance>`; predictors and dispatchers read them there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from pipeline.messages import MAX_TOKENS_LIMIT, Probe, TaggedRequest
from pipeline.subjects import Header
from pipeline.trace_context import trace_headers

PROMPT_TOKENS_MAX = 1 << 31


@dataclass(frozen=True, slots=True)
class Queued:
    """One request that was put into an inbox."""

    key: str
    prompt_tokens: int
    max_tokens: int
    """0 where it has no limit of its own."""
    p10: float
    p50: float
    p90: float

    @property
    def committed_tokens(self) -> float:
        """KV entries that it is expected to have at its end."""
        answer = min(self.p50, self.max_tokens) if self.max_tokens else self.p50
        return self.prompt_tokens + answer


def queued_of(asked: TaggedRequest | Probe) -> Queued:
    """The same of a request or a probe in hand."""
    estimate = asked.estimate
    return Queued(
        asked.key,
        asked.prompt_tokens,
        asked.max_tokens or 0,
        estimate.p10,
        estimate.p50,
        estimate.p90,
    )


def queued_headers(tagged: TaggedRequest) -> dict[str, str]:
    """What goes with the request into an inbox."""
    estimate = tagged.estimate
    return {
        Header.REQUEST: tagged.key,
        Header.ATTEMPT: str(tagged.attempt),
        Header.PROMPT_TOKENS: str(tagged.prompt_tokens),
        Header.MAX_TOKENS: str(tagged.max_tokens or 0),
        Header.ESTIMATE: f"{estimate.p10:g},{estimate.p50:g},{estimate.p90:g}",
        **trace_headers(tagged),
    }


def read_queued(headers: Mapping[str, str]) -> Queued | None:
    """The headers of a message on `queued.<instance>`; None if they are not such."""
    try:
        p10, p50, p90 = (float(part) for part in headers[Header.ESTIMATE].split(","))
        queued = Queued(
            headers[Header.REQUEST],
            int(headers[Header.PROMPT_TOKENS]),
            int(headers[Header.MAX_TOKENS]),
            p10,
            p50,
            p90,
        )
    except (KeyError, ValueError):
        return None
    if not 0 <= queued.prompt_tokens <= PROMPT_TOKENS_MAX:
        return None
    if not 0 <= queued.max_tokens <= MAX_TOKENS_LIMIT:
        return None
    if not all(isfinite(quantile) and quantile >= 0 for quantile in (p10, p50, p90)):
        return None
    return queued
