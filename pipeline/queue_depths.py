"""Depths of streams and work queues as gauges.

Every dispatcher reads them, so that they are there as long as one dispatcher is; all show the same,
and a query takes their maximum.
"""

from pipeline.bus import Bus
from pipeline.bus.jetstream import ApiError
from pipeline.metrics import (
    QUEUE_IN_HAND,
    QUEUE_PENDING,
    QUEUE_PULLS,
    STREAM_BYTES,
    STREAM_MESSAGES,
)
from pipeline.subjects import DISPATCHER_CONSUMER, TAGGER_CONSUMER

DEPTHS_EVERY_S = 5.0


class QueueDepths:
    """Reads this stack's streams and its two shared work queues."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        subjects = bus.subjects
        self._streams = (
            subjects.requests_stream,
            subjects.tagged_stream,
            subjects.inbox_stream,
            subjects.results_stream,
            subjects.history_stream,
            subjects.dead_stream,
        )
        self._queues = (
            (subjects.requests_stream, TAGGER_CONSUMER),
            (subjects.tagged_stream, DISPATCHER_CONSUMER),
        )

    async def read(self) -> None:
        """One look. A stream or consumer that is missing is left out; it is made anew soon."""
        for stream in self._streams:
            try:
                state = (await self._bus.jetstream.stream_info(stream))["state"]
            except ApiError:
                continue
            STREAM_MESSAGES.labels(stream).set(state["messages"])
            STREAM_BYTES.labels(stream).set(state["bytes"])
        for stream, consumer in self._queues:
            info = await self._bus.jetstream.consumer_info(stream, consumer)
            if info is not None:
                QUEUE_PENDING.labels(stream).set(info["num_pending"])
                QUEUE_IN_HAND.labels(stream).set(info["num_ack_pending"])
                QUEUE_PULLS.labels(stream).set(info["num_waiting"])
