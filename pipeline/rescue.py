"""Taking work out of the inbox of a boot that is dead.

Any dispatcher does it, several at once without harm. First the boot's lease is set to dead by
compare-and-set: a worker that still lives loses its lease and stops, or keeps it and we stop.
Then each message goes back to TAGGED as the next attempt, under one id whoever publishes it, and
is deleted from the inbox by its sequence. The dead boot's consumer is never taken over: an
acknowledgement of its earlier life could remove a message that somebody else holds.
"""

import msgspec
import structlog

from pipeline.bus import Bus, Lease, StoredMessage
from pipeline.codec import decode, encode
from pipeline.conclusion import bury
from pipeline.errors import BadRequest, SequenceConflict
from pipeline.fleet import Fleet
from pipeline.messages import DispatchedRequest, Instance, wall_ms
from pipeline.metrics import RESCUED
from pipeline.requeue import CRASHES_MAX, requeue
from pipeline.subjects import last_tokens

log = structlog.get_logger()

SWEEP_EVERY_S = 2.0
BATCH_MAX = 200


class Rescue:
    """Sweeps inboxes without a living owner."""

    def __init__(self, bus: Bus, fleet: Fleet) -> None:
        self._bus = bus
        self._fleet = fleet

    async def sweep(self) -> None:
        """One look at all inboxes. Does nothing until we may call somebody dead."""
        if not self._fleet.may_judge:
            return
        subjects = self._bus.subjects
        counts = await self._bus.jetstream.subject_counts(
            subjects.inbox_stream, subjects.all_inboxes
        )
        for subject in counts:
            instance, boot = last_tokens(subject, 2)
            if not self._fleet.lives(instance, boot):
                await self._empty(instance, boot)

    async def _empty(self, instance: str, boot: str) -> None:
        if not await self._fence(instance, boot):
            return
        subjects = self._bus.subjects
        subject = subjects.inbox(instance, boot)
        consumer = subjects.inbox_consumer(instance, boot)
        info = await self._bus.jetstream.consumer_info(subjects.inbox_stream, consumer)
        delivered = info["delivered"]["stream_seq"] if info else 0
        messages = await self._bus.jetstream.read(subjects.inbox_stream, subject, limit=BATCH_MAX)
        for message in messages:
            await self._move(message, crashed=message.sequence <= delivered)
        log.info("inbox_rescued", instance=instance, boot=boot, requests=len(messages))

    async def _fence(self, instance: str, boot: str) -> bool:
        """Set the lease to dead; False where its owner was quicker and so lives."""
        lease, value = await Lease.find(self._bus, self._bus.subjects.lease_key(instance, boot))
        held = _instance(value)
        if held is not None and held.state == "dead":
            return True
        if held is None:
            tombstone = b'{"state":"dead"}'
        else:
            tombstone = encode(msgspec.structs.replace(held, state="dead", sent_at_ms=wall_ms()))
        try:
            await lease.write(tombstone)
        except SequenceConflict:
            return False
        return True

    async def _move(self, message: StoredMessage, *, crashed: bool) -> None:
        """Back to TAGGED as the next attempt, or to its end after too many crashes."""
        stream = self._bus.subjects.inbox_stream
        try:
            lost = decode(message.data, DispatchedRequest)
        except BadRequest as error:
            await bury(self._bus, "inbox", message, error.message)
            await self._bus.jetstream.delete(stream, message.sequence)
            return
        if await requeue(self._bus, lost, crashed=crashed):
            RESCUED.inc()
        else:
            await bury(self._bus, "inbox", message, f"lost with {CRASHES_MAX} workers")
        await self._bus.jetstream.delete(stream, message.sequence)


def _instance(value: bytes | None) -> Instance | None:
    """The lease's holder; None for an unset key or a bare tombstone."""
    if value is None:
        return None
    try:
        return decode(value, Instance)
    except BadRequest:
        return None
