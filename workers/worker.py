"""The worker: drains one instance's inbox into its engine and streams the answers back.

A boot is one life of the worker: its own id, inbox, consumer and lease. When the lease is lost
(somebody called this boot dead) everything in hand is dropped unanswered, since it was given to
others, and a new boot begins on the same engine.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Literal, get_args

import msgspec
import structlog

from pipeline.bus import Bus, Message, WorkQueue
from pipeline.bus.jetstream import READ_BATCH_MAX
from pipeline.bus.service import Service, serve
from pipeline.bus.topology import inbox_consumer
from pipeline.cancels import Cancels
from pipeline.codec import decode, encode
from pipeline.conclusion import find_result
from pipeline.errors import BusError
from pipeline.messages import (
    DispatchedRequest,
    DrainReply,
    EngineLimits,
    Instance,
    StateUpdate,
    wall_ms,
)
from pipeline.periodic import every
from pipeline.process import Stop
from pipeline.requeue import requeue
from workers.engine import Engine, EngineReady
from workers.gauges import EngineGauges
from workers.lease import Hold, new_boot
from workers.ledger import Ledger
from workers.run import Runner

log = structlog.get_logger()

LOOK_AHEAD_SHARE = 0.25
"""Of the batch cap: what is pulled beyond it, so that the engine never waits for the bus. What
stays in the inbox can still go elsewhere when the instance dies or drains."""
STATE_EVERY_S = 0.02
STATE_REFRESH_S = 0.2
"""Also without a change: a lost update heals, and progress is seen."""
STATE_IDLE_S = 1.0
"""With nothing in hand: the predictor sees that the worker lives."""
INBOX_DEPTH_EVERY_S = 1.0
GRACE_S = 30.0
ENGINE_ENDS_S = 2.0
"""For the streams of an engine that broke to say so; each is then handed back as a crash."""
REBOOT_WAIT_S = 1.0

End = Literal["lost", "engine", "stop"]
"""The lease was lost, the engine broke for good, or the worker was told to stop."""
ENDS: tuple[End, ...] = get_args(End)
"""If several come at once, the first of these."""


def in_hand_max(limits: EngineLimits) -> int:
    """Most requests that a worker takes out of its inbox at once."""
    cap = limits.max_num_seqs
    return cap + max(2, round(cap * LOOK_AHEAD_SHARE))


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a person can choose."""

    instance: str
    grace_s: float = GRACE_S
    """How long running requests may go on after SIGTERM before they are handed back."""


class Worker:
    """One boot of one instance."""

    def __init__(
        self,
        bus: Bus,
        tokens_bus: Bus,
        engine: Engine,
        ready: EngineReady,
        settings: WorkerSettings,
        gauges: EngineGauges | None = None,
    ) -> None:
        self._gauges = gauges or EngineGauges()
        self._bus = bus
        self._engine = engine
        self._ready = ready
        self._settings = settings
        self.boot = new_boot()
        self._draining = False
        self._inbox_pending = 0
        self._state_sequence = 0
        self._ledger = Ledger(ready.limits.max_model_len)
        self._hold = Hold(bus, self.describe)
        self._cancels = Cancels(self._on_cancel)
        self._runner = Runner(
            bus,
            tokens_bus,
            engine,
            self._ledger,
            self._hold,
            self._cancels,
            instance=settings.instance,
        )
        self._aborts: set[asyncio.Task[None]] = set()
        self._service: Service | None = None

    def describe(self) -> Instance:
        """This boot as heartbeat and lease show it."""
        stats = self._engine.stats()
        return Instance(
            instance=self._settings.instance,
            boot=self.boot,
            model=self._ready.model,
            engine=self._engine.name,
            state="draining" if self._draining else "ready",
            limits=self._ready.limits,
            running=stats.running,
            waiting=max(stats.waiting, len(self._ledger) - stats.running),
            inbox_pending=self._inbox_pending,
            kv_blocks_used=stats.kv_blocks_used,
            preemptions=stats.preemptions,
            sent_at_ms=wall_ms(),
        )

    async def run(self, stop: Stop) -> End:
        """Serve until one of these comes; everything in hand has then found its place."""
        await self._cancels.start(self._bus)
        consumer = inbox_consumer(self._bus.subjects, self._settings.instance, self.boot)
        await consumer.ensure(self._bus)  # before anybody can be sent here
        await self._hold.take()
        queue = WorkQueue(
            self._bus,
            consumer,
            self._runner.handle,
            in_hand_max=in_hand_max(self._ready.limits),
        )
        self._service = await self._register(stop)
        log.info("worker_ready", instance=self._settings.instance, boot=self.boot)
        async with asyncio.TaskGroup() as tasks:
            chores = [
                tasks.create_task(self._hold.keep()),
                tasks.create_task(self._publish_states()),
                tasks.create_task(every(INBOX_DEPTH_EVERY_S, self._look)),
            ]
            tasks.create_task(queue.run())
            why = await self._wait_for_end(stop)
            if why == "lost":
                self._runner.abandon()
                await queue.stop(0.0)
            else:
                grace_s = self._settings.grace_s if why == "stop" else ENGINE_ENDS_S
                await self._drain(queue, grace_s, stop.hurry)
            for chore in chores:
                chore.cancel()
        if why != "lost":
            await self._hold.leave()
            await self._bus.jetstream.delete_consumer(consumer.stream, consumer.name)
        return why

    async def close(self) -> None:
        """This boot is over; the connection serves the next one."""
        await self._cancels.close()
        if self._service is not None:
            with contextlib.suppress(BusError):
                await self._service.stop()

    async def _register(self, stop: Stop) -> Service:
        """As a service that an operator can tell to drain."""

        async def drain(_: Message) -> bytes:
            log.info("worker_told_to_drain", instance=self._settings.instance)
            stop.set()
            return encode(DrainReply(instance=self._settings.instance, in_hand=len(self._ledger)))

        return await serve(
            self._bus,
            "worker",
            "Runs the requests of one instance on its engine.",
            metadata={"instance": self._settings.instance, "boot": self.boot},
            endpoint=("drain", self._bus.subjects.drain(self._settings.instance), drain),
        )

    async def _wait_for_end(self, stop: asyncio.Event) -> End:
        waits: dict[asyncio.Task[object], End] = {
            asyncio.create_task(stop.wait()): "stop",
            asyncio.create_task(self._hold.lost.wait()): "lost",
            asyncio.create_task(self._engine.wait_failed()): "engine",
        }
        done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        reasons = {waits[task] for task in done}
        return next(why for why in ENDS if why in reasons)

    async def _drain(self, queue: WorkQueue, grace_s: float, hurry: asyncio.Event) -> None:
        """Nothing new comes; what runs may finish within the grace period, the rest goes back."""
        self._draining = True
        await self._hold.beat()
        log.info("worker_draining", instance=self._settings.instance, in_hand=queue.in_hand)
        await queue.stop_pulling()
        await self._hand_back_inbox(untouched_only=True)
        await queue.stop(grace_s, hurry)
        await self._hand_back_inbox()

    async def _hand_back_inbox(self, *, untouched_only: bool = False) -> None:
        """What lies in the inbox goes back to TAGGED; by then nobody here works on it."""
        subjects = self._bus.subjects
        name = subjects.inbox_consumer(self._settings.instance, self.boot)
        start = 1
        if untouched_only:
            info = await self._bus.jetstream.consumer_info(subjects.inbox_stream, name)
            start = info["delivered"]["stream_seq"] + 1 if info else 1
        while True:
            messages = await self._bus.jetstream.read(
                subjects.inbox_stream,
                subjects.inbox(self._settings.instance, self.boot),
                start=start,
            )
            for message in messages:
                request = decode(message.data, DispatchedRequest)
                # One that just ended may still lie here: acknowledgements take effect late.
                if await find_result(self._bus, request.client, request.id) is None:
                    await requeue(self._bus, request, crashed=False)
                await self._bus.jetstream.delete(subjects.inbox_stream, message.sequence)
            if len(messages) < READ_BATCH_MAX:
                return

    async def _publish_states(self) -> None:
        """Soon after every arrival and end, and now and then in between."""
        while True:
            self._ledger.changed.clear()
            await self.publish_state()
            await asyncio.sleep(STATE_EVERY_S)
            refresh_s = STATE_REFRESH_S if len(self._ledger) else STATE_IDLE_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(refresh_s):
                    await self._ledger.changed.wait()

    async def publish_state(self) -> None:
        """The whole ledger to the predictor."""
        self._state_sequence += 1
        stats = self._engine.stats()
        update = StateUpdate(
            instance=self._settings.instance,
            boot=self.boot,
            model=self._ready.model,
            engine=self._engine.name,
            sequence=self._state_sequence,
            sent_at_ms=wall_ms(),
            limits=self._ready.limits,
            step_time=self._ready.step_time,
            requests=self._ledger.states(stats),
            ended=self._ledger.ended(),
            steps=self._engine.take_steps(),
            admission=stats.admission,
            source=stats.source,
        )
        try:
            await self._bus.publish(
                self._bus.subjects.state(self._settings.instance), msgspec.msgpack.encode(update)
            )
        except BusError as error:
            log.warning("state_not_published", error=str(error))

    async def _look(self) -> None:
        """What lies in the inbox; and all that a heartbeat has, as gauges."""
        subjects = self._bus.subjects
        info = await self._bus.jetstream.consumer_info(
            subjects.inbox_stream, subjects.inbox_consumer(self._settings.instance, self.boot)
        )
        self._inbox_pending = info["num_pending"] if info else 0
        self._gauges.show(self.describe())

    def _on_cancel(self, key: str) -> None:
        entry = self._ledger.get(key)
        if entry is None:
            return
        entry.cancelled = True
        task = asyncio.create_task(self._engine.abort(key))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)


async def serve_worker(
    bus: Bus, tokens_bus: Bus, engine: Engine, settings: WorkerSettings, stop: Stop
) -> str | None:
    """Start the engine and serve boots until `stop`; the engine outlives a lost lease.

    Returns why the engine broke for good, if it did: somebody has to start it anew.
    """
    try:
        ready = await engine.start()
        gauges = EngineGauges()
        why: End = "lost"
        while why == "lost":
            worker = Worker(bus, tokens_bus, engine, ready, settings, gauges)
            try:
                why = await worker.run(stop)
            except* BusError as errors:
                # The engine is dear to start: a bus that stumbles costs a boot, not the process.
                why = "stop" if stop.is_set() else "lost"
                log.warning("boot_failed", errors=[str(error) for error in errors.exceptions])
                await asyncio.sleep(REBOOT_WAIT_S)
            finally:
                await worker.close()
            if why == "lost":
                log.warning("worker_reboots", instance=settings.instance)
        if why != "engine":
            return None
        reason = await engine.wait_failed()
        log.error("engine_failed_for_good", instance=settings.instance, reason=reason)
        return reason
    finally:
        await engine.close()
