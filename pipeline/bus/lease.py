"""A key in the registry bucket, written only by compare-and-set.

A worker holds the lease of its boot and renews it with every heartbeat. Whoever rescues a dead
boot's work first sets its key to dead in the same way: one of the two writers loses, and knows.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.errors import SequenceConflict

if TYPE_CHECKING:
    from pipeline.bus.connection import Bus

WRITE_TIMEOUT_S = 3.0


@dataclass
class Lease:
    """One key of the bucket. `revision` is what this holder wrote last; 0 for nothing yet."""

    bus: "Bus"
    key: str
    revision: int = 0

    @property
    def _subject(self) -> str:
        return f"$KV.{self.bus.subjects.instances_bucket}.{self.key}"

    @property
    def _stream(self) -> str:
        return f"KV_{self.bus.subjects.instances_bucket}"

    async def write(self, value: bytes) -> None:
        """Set the key if nobody else did since. Raises SequenceConflict, BusUnavailable.

        A key that ran out (the bucket has a TTL) counts as unwritten: it is made again, unless
        somebody else made it first.
        """
        try:
            stored = await self._put(value, self.revision)
        except SequenceConflict:
            current = await self.bus.jetstream.last(self._stream, self._subject)
            if current is not None and current.data != value:
                raise
            if current is not None:  # our own write, whose acknowledgement was lost
                self.revision = current.sequence
                return
            stored = await self._put(value, 0)
        self.revision = stored

    async def _put(self, value: bytes, last: int) -> int:
        stored = await self.bus.jetstream.store(
            self._subject, value, expect_last=last, timeout_s=WRITE_TIMEOUT_S
        )
        return stored.sequence

    @classmethod
    async def find(cls, bus: "Bus", key: str) -> tuple["Lease", bytes | None]:
        """The key as it stands now, ready to be overwritten; None where it is unset."""
        lease = cls(bus, key)
        current = await bus.jetstream.last(lease._stream, lease._subject)
        if current is None:
            return lease, None
        lease.revision = current.sequence
        return lease, current.data


async def all_leases(bus: "Bus") -> dict[str, bytes]:
    """Every key of the bucket with its value."""
    bucket = bus.subjects.instances_bucket
    stored = await bus.jetstream.last_of_each(f"KV_{bucket}", f"$KV.{bucket}.>")
    skip = len(f"$KV.{bucket}.")
    return {message.subject[skip:]: message.data for message in stored}
