"""The worker's hold on its boot: heartbeats, and the lease that says it may speak.

Every second the heartbeat goes out and the lease is renewed by compare-and-set. While it cannot
be renewed the worker publishes nothing but goes on generating, for a while: a restart of the
broker costs no work. When somebody else wrote the key, the boot is over.
"""

import asyncio
import secrets
import time
from collections.abc import Callable

import structlog
from msgspec.structs import replace

from pipeline.bus import Bus, Lease
from pipeline.bus.lease import all_leases
from pipeline.bus.topology import LEASE_TTL_S
from pipeline.codec import decode, encode
from pipeline.errors import BadRequest, BusError, SequenceConflict
from pipeline.fleet import LIVENESS_S
from pipeline.messages import Instance

log = structlog.get_logger()

HEARTBEAT_EVERY_S = 1.0
SPEAK_FOR_S = LIVENESS_S * 0.8
"""After a renewal; less than what a dispatcher waits before it calls us dead."""


def new_boot() -> str:
    """An id for one start of a worker: sortable by time, unique."""
    return f"{int(time.time()):x}-{secrets.token_hex(3)}"


class Hold:
    """Keeps one boot alive. `lost` is set when the lease is somebody else's."""

    def __init__(self, bus: Bus, describe: Callable[[], Instance]) -> None:
        self._bus = bus
        self._describe = describe
        self.lost = asyncio.Event()
        self._may_speak = asyncio.Event()
        self._renewed_at = 0.0
        first = describe()
        self._lease = Lease(bus, bus.subjects.lease_key(first.instance, first.boot))

    async def take(self) -> None:
        """Claim the boot, and end every earlier boot of the same name."""
        me = self._describe()
        for key, value in (await all_leases(self._bus)).items():
            instance, _, boot = key.partition(".")
            if instance == me.instance and boot != me.boot:
                await self._end_other(key, value)
        await self._lease.write(encode(me))
        self._renewed()

    async def _end_other(self, key: str, value: bytes) -> None:
        lease, current = await Lease.find(self._bus, key)
        if current is None:
            return
        try:
            held = decode(value, Instance)
        except BadRequest:
            return  # a tombstone already
        if held.state == "dead":
            return
        log.warning("earlier_boot_ended", instance=held.instance, boot=held.boot)
        try:
            await lease.write(b'{"state":"dead"}')
        except SequenceConflict:
            # It renewed in between, so it is alive: two processes share one name.
            log.error("name_taken", instance=held.instance, hint="give each worker its own name")

    async def keep(self) -> None:
        """Heartbeat and renew until cancelled or lost."""
        while True:
            await self.beat()
            if self.lost.is_set():
                return
            await asyncio.sleep(HEARTBEAT_EVERY_S)

    async def beat(self) -> None:
        """One heartbeat and one renewal."""
        if time.monotonic() - self._renewed_at > LEASE_TTL_S:
            # Frozen or cut off for so long that even the note of our death has run out.
            self._end()
            return
        me = self._describe()
        body = encode(me)
        try:
            await self._lease.write(body)
            self._renewed()
            await self._bus.publish(self._bus.subjects.heartbeat(me.instance), body)
        except SequenceConflict:
            self._end()
        except BusError as error:
            log.warning("lease_not_renewed", error=str(error))

    def _end(self) -> None:
        me = self._describe()
        log.error("lease_lost", instance=me.instance, boot=me.boot)
        self._may_speak.clear()
        self.lost.set()

    async def speak(self) -> bool:
        """Wait until publishing is allowed; False when the boot is over."""
        while not self.lost.is_set():
            if time.monotonic() - self._renewed_at < SPEAK_FOR_S:
                return True
            self._may_speak.clear()
            waiters = [
                asyncio.ensure_future(self._may_speak.wait()),
                asyncio.ensure_future(self.lost.wait()),
            ]
            try:
                await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for waiter in waiters:
                    waiter.cancel()
        return False

    async def leave(self) -> None:
        """Say goodbye: dispatchers forget the boot at once."""
        gone = encode(_dead(self._describe()))
        try:
            await self._lease.write(gone)
            await self._bus.publish(self._bus.subjects.heartbeat(self._describe().instance), gone)
        except BusError as error:
            log.warning("leave_failed", error=str(error))

    def _renewed(self) -> None:
        self._renewed_at = time.monotonic()
        self._may_speak.set()


def _dead(instance: Instance) -> Instance:
    return replace(instance, state="dead")
