"""Draining a work queue: keep a bounded number of messages in hand, and each one settled.

The client library's `fetch` returns when its batch is full or its time is up; for a queue that is
mostly empty that is either slow or busy. Here demand is kept standing at the server: what is in
hand plus what was asked for never exceeds `in_hand_max`, so nothing is taken that will not be
started. A message is kept alive while its handler runs. Silence (a lost pull request, a consumer
that vanished, a restarted server) is noticed by missing heartbeats, and the demand is made anew
on a fresh inbox: what the server still sends to the old one finds nobody and is redelivered.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import msgspec
import structlog

from pipeline.bus.connection import Bus, Message, Subscription
from pipeline.bus.jetstream import API, ApiError
from pipeline.errors import BusError
from pipeline.metrics import REDELIVERIES, WORK_FAILED

if TYPE_CHECKING:
    from pipeline.bus.topology import ConsumerSpec

log = structlog.get_logger()

PULL_EXPIRES_S = 30.0
PULL_HEARTBEAT_S = 3.0
SILENCE_MAX_S = 2.5 * PULL_HEARTBEAT_S
FAILED_NAK_DELAY_S = 1.0
RECOVER_WAIT_S = (0.2, 1.0)  # jittered: many consumers recover after the same restart
ACK, NAK, PROGRESS, TERM = b"+ACK", b"-NAK", b"+WPI", b"+TERM"


class Delivery:
    """One message from a work queue, in hand until it is acknowledged, refused or terminated."""

    __slots__ = (
        "_bus",
        "_reply",
        "data",
        "deliveries",
        "headers",
        "pending",
        "sequence",
        "settled",
        "stored_at_ms",
        "subject",
    )

    def __init__(self, bus: Bus, message: Message) -> None:
        self._bus = bus
        self._reply = message.reply
        self.subject = message.subject
        self.data = message.data
        self.headers: Mapping[str, str] = message.headers
        self.settled = False
        # $JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>.<consumer's>.<time ns>.<pending>
        # or the longer form with a domain and an account in front; both end alike.
        tokens = message.reply.split(".")
        offset = 2 if len(tokens) == 9 else 4
        self.deliveries = int(tokens[offset + 2])
        self.sequence = int(tokens[offset + 3])
        self.stored_at_ms = int(tokens[offset + 5]) / 1e6
        self.pending = int(tokens[offset + 6])

    async def ack(self) -> None:
        """Done: the stream forgets the message."""
        await self._settle(ACK)

    async def nak(self, delay_s: float = 0.0) -> None:
        """Not now: deliver again after `delay_s`."""
        body = b' {"delay": %d}' % int(delay_s * 1e9) if delay_s > 0 else b""
        await self._settle(NAK + body)

    async def term(self) -> None:
        """Never again."""
        await self._settle(TERM)

    async def keep(self) -> None:
        """Still at it: start the acknowledgement's clock anew."""
        if not self.settled:
            await self._bus.publish(self._reply, PROGRESS)

    async def _settle(self, verb: bytes) -> None:
        if self.settled:
            return
        self.settled = True
        await self._bus.publish(self._reply, verb)


Handler = Callable[[Delivery], Awaitable[None]]


class WorkQueue:
    """Runs `handle` for each message of one durable consumer, at most `in_hand_max` at once."""

    def __init__(
        self, bus: Bus, consumer: "ConsumerSpec", handle: Handler, *, in_hand_max: int
    ) -> None:
        self._bus = bus
        self._consumer = consumer
        self._handle = handle
        self._in_hand_max = in_hand_max
        self._tasks: dict[asyncio.Task[None], Delivery] = {}
        self._asked = 0
        self._last_heard = 0.0
        self._wake = asyncio.Event()
        self._recover = True
        self._consumer_lost = True
        self._stopping = False
        self._subscription: Subscription | None = None
        self.failed = 0
        """Handlers that raised."""
        bus.on_reconnect(self._on_reconnect)

    @property
    def in_hand(self) -> int:
        return len(self._tasks)

    async def run(self) -> None:
        """Pull until `stop`. Never raises for what goes wrong on the bus; it recovers."""
        loop = asyncio.get_running_loop()
        keep_every_s = self._consumer.ack_wait_s / 3
        keep_at = loop.time() + keep_every_s
        while not self._stopping:
            try:
                if self._recover:
                    await self._begin()
                await self._top_up()
                if loop.time() >= keep_at:
                    keep_at = loop.time() + keep_every_s
                    for delivery in list(self._tasks.values()):
                        await delivery.keep()
                if self._asked and loop.time() - self._last_heard > SILENCE_MAX_S:
                    log.warning("work_queue_silent", consumer=self._consumer.name)
                    self._recover = True
                    continue
            except BusError as error:
                log.warning("work_queue_recovering", consumer=self._consumer.name, error=str(error))
                self._recover = True
                await asyncio.sleep(random.uniform(*RECOVER_WAIT_S))
                continue
            self._wake.clear()
            try:
                async with asyncio.timeout(min(keep_every_s, PULL_HEARTBEAT_S)):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def stop_pulling(self) -> None:
        """Take nothing new; what is in hand goes on."""
        if self._stopping:
            return
        self._stopping = True
        self._bus.off_reconnect(self._on_reconnect)
        self._wake.set()
        if self._subscription is not None:
            # Messages already on their way are refused at once instead of timing out.
            await self._subscription.drain()

    async def stop(self, grace_s: float = 10.0, hurry: asyncio.Event | None = None) -> None:
        """Take nothing new, let the handlers finish, then cancel them so that they hand back.

        They have `grace_s`, or until `hurry` is set.
        """
        await self.stop_pulling()
        in_time = asyncio.gather(*self._tasks, return_exceptions=True)
        waits: list[asyncio.Future[object]] = [asyncio.ensure_future(asyncio.shield(in_time))]
        if hurry is not None:
            waits.append(asyncio.ensure_future(hurry.wait()))
        await asyncio.wait(waits, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        leftovers = list(self._tasks)
        for task in leftovers:
            task.cancel()
        await asyncio.gather(*leftovers, return_exceptions=True)

    async def _begin(self) -> None:
        """A fresh inbox and no demand; the consumer is made again where it may be missing."""
        if self._subscription is not None:
            await self._subscription.close()
        if self._consumer_lost:
            await self._consumer.ensure(self._bus)
            self._consumer_lost = False
        self._inbox = self._bus.new_inbox()
        self._subscription = await self._bus.subscribe(self._inbox, self._on_message)
        self._asked = 0
        self._recover = False
        self._last_heard = asyncio.get_running_loop().time()

    async def _top_up(self) -> None:
        """Ask for what there is room for, in steps: one pull request a message would be chatty."""
        room = self._in_hand_max - len(self._tasks) - self._asked
        if room <= 0 or (self._asked and room < self._in_hand_max // 4):
            return
        if self._asked == 0:
            self._last_heard = asyncio.get_running_loop().time()
        self._asked += room
        await self._bus.publish(
            f"{API}.CONSUMER.MSG.NEXT.{self._consumer.stream}.{self._consumer.name}",
            msgspec.json.encode(
                {
                    "batch": room,
                    "expires": int(PULL_EXPIRES_S * 1e9),
                    "idle_heartbeat": int(PULL_HEARTBEAT_S * 1e9),
                }
            ),
            reply=self._inbox,
        )

    def _on_reconnect(self) -> None:
        self._recover = True
        self._wake.set()

    def _on_message(self, message: Message) -> None:
        self._last_heard = asyncio.get_running_loop().time()
        # Only what has to be acknowledged has a reply subject; a client's message may have a
        # header called Status all the same.
        status = None if message.reply else message.headers.get("Status")
        if status is None:
            self._asked = max(0, self._asked - 1)
            self._start(Delivery(self._bus, message))
            if self._asked == 0:
                self._wake.set()
            return
        if status == "100":  # heartbeat
            return
        if status in ("404", "408"):  # this pull request ran out
            left = int(message.headers.get("Nats-Pending-Messages", self._asked))
            self._asked = max(0, self._asked - left)
        else:  # 409: consumer or leader changed; 503: nobody serves the consumer
            log.info(
                "work_queue_status",
                consumer=self._consumer.name,
                status=status,
                description=message.headers.get("Description", ""),
            )
            self._consumer_lost = True
            self._recover = True
        self._wake.set()

    def _start(self, delivery: Delivery) -> None:
        if delivery.deliveries > 1:
            REDELIVERIES.labels(self._consumer.stream).inc()
        task = asyncio.create_task(self._run_one(delivery))
        self._tasks[task] = delivery
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._wake.set()

    async def _run_one(self, delivery: Delivery) -> None:
        """Whatever the handler does, the message is settled and nothing escapes to the loop."""
        if self._stopping:
            await self._give_back(delivery, 0.0)
            return
        try:
            await self._handle(delivery)
        except asyncio.CancelledError:
            await self._give_back(delivery, 0.0)
        except BusError as error:
            self._note_failure()
            log.warning("work_failed", consumer=self._consumer.name, error=str(error))
            await self._give_back(delivery, FAILED_NAK_DELAY_S)
        except Exception:
            self._note_failure()
            log.exception("work_failed", consumer=self._consumer.name)
            await self._give_back(delivery, FAILED_NAK_DELAY_S)
        if not delivery.settled:
            log.error("work_unsettled", consumer=self._consumer.name)
            await self._give_back(delivery, FAILED_NAK_DELAY_S)

    def _note_failure(self) -> None:
        self.failed += 1
        WORK_FAILED.labels(self._consumer.stream).inc()

    async def _give_back(self, delivery: Delivery, delay_s: float) -> None:
        try:
            await delivery.nak(delay_s)
        except (BusError, ApiError) as error:  # it will come again by itself after ack_wait
            log.warning("nak_failed", error=str(error))
