"""The dispatcher: from TAGGED to the inbox of the better instance.

It keeps no state that it cannot rebuild: who lives is heard within a second, counts come with
the heartbeats, and a request stays in TAGGED until an inbox has it. Run as many as you like.
"""

import asyncio
import contextlib
import random
from dataclasses import dataclass

import msgspec
import structlog

from pipeline.bus import Bus, Delivery, Message, WorkQueue
from pipeline.bus.lease import all_leases
from pipeline.bus.service import Service, serve
from pipeline.bus.topology import dispatcher_consumer
from pipeline.cancels import Cancels
from pipeline.codec import decode, encode
from pipeline.conclusion import bury, conclude, error_result
from pipeline.errors import (
    BadRequest,
    Cancelled,
    DeadlineExceeded,
    ModelNotFound,
    QueueFull,
    RequestError,
)
from pipeline.estimates import RunningMedian
from pipeline.fleet import Fleet
from pipeline.intake import Intake
from pipeline.messages import (
    Decision,
    DispatchedRequest,
    Instance,
    TaggedRequest,
    wall_ms,
)
from pipeline.metrics import DISPATCH_RETRIES, DISPATCHED, FALLBACKS, INSTANCES_ALIVE, REFUSED
from pipeline.periodic import every
from pipeline.policies import DEFAULT_POLICY, Choice, Target, make_policy
from pipeline.probing import NOBODY_ASKED, ask, probe_for, recorded
from pipeline.queue_depths import DEPTHS_EVERY_S, QueueDepths
from pipeline.queued import queued_headers, queued_of, read_queued
from pipeline.rescue import SWEEP_EVERY_S, Rescue
from pipeline.standin import TaggerStandIn
from pipeline.subjects import Header, last_tokens

log = structlog.get_logger()

IN_HAND_MAX = 64
NOBODY_NAK_S = 0.5
FULL_NAK_S = 0.2
REGISTRY_EVERY_S = 1.0
STOP_GRACE_S = 5.0
LISTEN_FIRST_S = 1.1


@dataclass(frozen=True, slots=True)
class DispatcherSettings:
    """What a person can choose."""

    policy: str = DEFAULT_POLICY
    probe_timeout_ms: float = 50.0
    """A score that comes later is worth less than the wait."""
    seed: int | None = None


class Dispatcher:
    """One dispatcher process."""

    def __init__(self, bus: Bus, settings: DispatcherSettings) -> None:
        self._bus = bus
        self._settings = settings
        self._policy = make_policy(settings.policy, random.Random(settings.seed))
        self._fleet = Fleet()
        self._cancels = Cancels()
        self._median = RunningMedian()

    async def serve(self, stop: asyncio.Event) -> None:
        """Listen to the fleet, drain TAGGED, rescue, stand in; until `stop`."""
        await self._listen()
        queue = WorkQueue(
            self._bus,
            dispatcher_consumer(self._bus.subjects),
            self.handle,
            in_hand_max=IN_HAND_MAX,
        )
        intake = Intake(self._bus, self._median, self._cancels, stage="dispatcher")
        rescue = Rescue(self._bus, self._fleet)
        async with asyncio.TaskGroup() as tasks:
            chores = [
                tasks.create_task(every(REGISTRY_EVERY_S, self._read_registry)),
                tasks.create_task(every(SWEEP_EVERY_S, rescue.sweep)),
                tasks.create_task(TaggerStandIn(self._bus, intake).watch()),
                tasks.create_task(every(DEPTHS_EVERY_S, QueueDepths(self._bus).read)),
            ]
            # One round of heartbeats before the first decision: who has heard of one instance
            # only would send everything there.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LISTEN_FIRST_S):
                    await stop.wait()
            tasks.create_task(queue.run())
            service = await self._register()
            await stop.wait()
            for chore in chores:
                chore.cancel()
            await queue.stop(STOP_GRACE_S)
        await service.stop()

    async def _register(self) -> Service:
        """From here on we count as ready."""
        service = await serve(
            self._bus,
            "dispatcher",
            "Puts tagged requests into the inbox of the better instance.",
            metadata={"policy": self._policy.name},
        )
        log.info("dispatcher_ready", policy=self._policy.name)
        return service

    async def _listen(self) -> None:
        subjects = self._bus.subjects
        self._bus.on_reconnect(self._fleet.reconnected)
        await self._bus.subscribe(subjects.all_heartbeats, self._on_heartbeat)
        await self._bus.subscribe(subjects.all_queued, self._on_queued)
        await self._bus.subscribe(subjects.all_finished, self._on_finished)
        await self._cancels.start(self._bus)
        await self._read_registry()

    def _on_heartbeat(self, message: Message) -> None:
        try:
            self._fleet.heard(decode(message.data, Instance))
        except (BadRequest, RequestError) as error:
            log.warning("heartbeat_ignored", subject=message.subject, reason=error.message)

    def _on_queued(self, message: Message) -> None:
        (instance,) = last_tokens(message.subject, 1)
        queued = read_queued(message.headers)
        if queued is not None:
            self._fleet.arrived(instance, queued.key, queued.committed_tokens)

    def _on_finished(self, message: Message) -> None:
        self._median.finished(message)
        key, instance = message.headers.get(Header.REQUEST), message.headers.get(Header.INSTANCE)
        if key and instance:
            self._fleet.departed(instance, key)

    async def _read_registry(self) -> None:
        leases = await all_leases(self._bus)
        instances = []
        for value in leases.values():
            try:
                instances.append(decode(value, Instance))
            except BadRequest:
                continue  # a bare tombstone: nobody's any more
        self._fleet.snapshot(instances)
        INSTANCES_ALIVE.set(self._fleet.alive)

    async def handle(self, delivery: Delivery) -> None:
        """One request: end it, put it back for later, or put it into an inbox."""
        received_at_ms = wall_ms()
        try:
            tagged = decode(delivery.data, TaggedRequest)
        except BadRequest as error:
            await bury(self._bus, "dispatcher", delivery, error.message)
            await delivery.term()
            return
        try:
            targets = self._targets(tagged)
        except RequestError as error:
            REFUSED.labels("dispatcher", error.code).inc()
            await conclude(self._bus, error_result(tagged, error))
            await delivery.ack()
            return
        if not targets:
            DISPATCH_RETRIES.labels("no_instance").inc()
            await delivery.nak(NOBODY_NAK_S)
            return
        choice, decision = await self._decide(tagged, targets)
        await self._place(delivery, tagged, choice, decision, received_at_ms)

    def _targets(self, tagged: TaggedRequest) -> list[Target]:
        """Who may take it. Raises what ends the request here; nobody is not the end."""
        if tagged.key in self._cancels:
            raise Cancelled("cancelled before it was dispatched")
        if wall_ms() > tagged.deadline_at_ms:
            raise DeadlineExceeded(
                "the deadline passed before an instance took it", field="deadline_ms"
            )
        targets = self._fleet.targets(tagged.model)
        served = self._fleet.models()
        if not targets and served and not self._fleet.knows_model(tagged.model):
            raise ModelNotFound(
                f"no instance serves model {tagged.model}",
                field="model",
                limit=", ".join(served)[:256],
            )
        return targets

    async def _decide(
        self, tagged: TaggedRequest, targets: list[Target]
    ) -> tuple[Choice, Decision]:
        policy = self._policy
        shortlist = policy.shortlist(targets)
        probe = probe_for(tagged, policy.needs)
        answers = NOBODY_ASKED
        if policy.needs != "nothing":
            timeout_s = self._settings.probe_timeout_ms / 1000
            answers = await ask(self._bus, self._fleet, probe, shortlist, timeout_s)
        choice = policy.choose(shortlist, answers.predictions, probe)
        if choice.fallback:
            FALLBACKS.labels("no_answer").inc()
        return choice, Decision(
            policy=policy.name,
            reason=choice.reason,
            candidates=recorded(choice.order, answers),
            fallback=choice.fallback,
        )

    async def _place(
        self,
        delivery: Delivery,
        tagged: TaggedRequest,
        choice: Choice,
        decision: Decision,
        received_at_ms: float,
    ) -> None:
        """Into the first inbox that has room. Acknowledged only once one of them has it."""
        trace = msgspec.structs.replace(
            tagged.trace, dispatcher_received_at_ms=received_at_ms, probed_at_ms=wall_ms()
        )
        for target in choice.order:
            try:
                await self._store(tagged, target, decision, trace)
            except QueueFull:
                continue
            # Before the echo: the next decision must not see the instance without it.
            tokens = queued_of(tagged).committed_tokens
            self._fleet.arrived(target.instance, tagged.key, tokens)
            DISPATCHED.labels(self._policy.name).inc()
            await delivery.ack()
            return
        DISPATCH_RETRIES.labels("inboxes_full").inc()
        await delivery.nak(FULL_NAK_S)

    async def _store(
        self, tagged: TaggedRequest, target: Target, decision: Decision, trace: msgspec.Struct
    ) -> None:
        dispatched = DispatchedRequest(
            **{
                **msgspec.structs.asdict(tagged),
                "trace": msgspec.structs.replace(trace, dispatched_at_ms=wall_ms()),
            },
            instance=target.instance,
            boot=target.boot,
            decision=decision,
        )
        await self._bus.jetstream.store(
            self._bus.subjects.inbox(target.instance, target.boot),
            encode(dispatched),
            # Whichever inbox it went to: a repeat of this attempt is known to the stream.
            message_id=f"{tagged.key}.{tagged.attempt}",
            headers=queued_headers(tagged),
        )
