"""Back to TAGGED: a request that its instance will not finish, as the next attempt.

Whoever does it (the worker itself when it drains, any dispatcher when the worker died) publishes
under the same id, so the attempt exists once.
"""

from pipeline.bus import Bus
from pipeline.codec import encode
from pipeline.conclusion import conclude, error_result
from pipeline.errors import WorkerLost
from pipeline.messages import DispatchedRequest, TaggedRequest
from pipeline.subjects import Header
from pipeline.trace_context import trace_headers

CRASHES_MAX = 3


async def requeue(bus: Bus, request: DispatchedRequest, *, crashed: bool) -> bool:
    """Publish the next attempt; False where the request ended instead, after too many crashes.

    The caller removes the inbox message afterwards. Raises QueueFull, BusUnavailable.
    """
    again = next_attempt(request, crashed=crashed)
    if again.crashes >= CRASHES_MAX:
        reason = f"{again.crashes} workers failed while they held this request"
        await conclude(bus, error_result(request, WorkerLost(reason, limit=CRASHES_MAX)))
        return False
    await bus.jetstream.store(
        bus.subjects.tagged(again.model, again.client),
        encode(again),
        message_id=f"{again.key}.{again.attempt}",
        headers={Header.REQUEST: again.key, **trace_headers(again)},
    )
    return True


def next_attempt(request: DispatchedRequest, *, crashed: bool) -> TaggedRequest:
    """The same request for another run; only a crash counts against it."""
    return TaggedRequest(
        id=request.id,
        client=request.client,
        model=request.model,
        request=request.request,
        prompt_tokens=request.prompt_tokens,
        max_tokens=request.max_tokens,
        estimate=request.estimate,
        priority=request.priority,
        deadline_at_ms=request.deadline_at_ms,
        attempt=request.attempt + 1,
        crashes=request.crashes + int(crashed),
        trace=request.trace,
        traceparent=request.traceparent,
    )
