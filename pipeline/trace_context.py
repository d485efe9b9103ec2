"""The W3C trace context of a request: taken from its header once, repeated on every hop.

It travels in the body too, so that whoever moves a request (a rescue, a drain) keeps it. What is
not well formed is dropped: it is copied into many messages, so its length has to be bounded.
"""

import re
from collections.abc import Mapping

from pipeline.messages import Result, TaggedRequest
from pipeline.subjects import Header

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def read_traceparent(headers: Mapping[str, str]) -> str | None:
    """The header's value; None where there is none, or none that is well formed."""
    value = headers.get(Header.TRACEPARENT, "")
    return value if _TRACEPARENT.fullmatch(value) else None


def trace_headers(carrier: TaggedRequest | Result) -> dict[str, str]:
    """The header of whatever is sent on behalf of a request; empty where it has no trace."""
    if carrier.traceparent is None:
        return {}
    return {Header.TRACEPARENT: carrier.traceparent}
