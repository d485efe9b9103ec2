"""The instances as a dispatcher knows them: who lives, who is out for a while, how full each is.

Liveness is the heartbeat on our monotonic clock. A dispatcher that has just come up, or has just
been reconnected, has missed heartbeats through no fault of the workers: for one grace period it
declares nobody dead. Nothing here is stored: a new dispatcher knows the fleet within a second.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pipeline.commitments import Commitments, share_committed
from pipeline.messages import Instance
from pipeline.policies.base import Target
from pipeline.subjects import DEFAULT_MODEL, model_slug

LIVENESS_S = 3.0
GRACE_S = 10.0  # several heartbeats, and time for everybody to reconnect
MODEL_MEMORY_S = 600.0
MODELS_MAX = 1_000
SEEN_BY_WORKER_S = 0.1  # a dispatch younger than this may not be in the heartbeat yet
FORGET_S = 20 * 60.0  # a silent member's record goes after this; its lease ran out before
LEFT_OUT_FIRST_S = 0.5
LEFT_OUT_MAX_S = 10.0


@dataclass(slots=True)
class Member:
    """One living boot of an instance."""

    instance: Instance
    heard_at: float
    arrived: dict[str, float] = field(default_factory=dict)
    """Requests put into its inbox since the last heartbeat, by key, with the time."""
    departed: set[str] = field(default_factory=set)
    """Requests finished since the last heartbeat."""
    commitments: Commitments = field(default_factory=Commitments)
    failures: int = 0
    left_out_until: float = 0.0

    @property
    def in_flight(self) -> int:
        return max(0, self.instance.in_flight + len(self.arrived) - len(self.departed))

    def target(self) -> Target:
        """As a policy sees it."""
        instance, in_flight = self.instance, self.in_flight
        tokens = self.commitments.tokens(in_flight)
        committed = share_committed(tokens, in_flight, instance.limits)
        return Target(instance.instance, instance.boot, in_flight, committed)


class Fleet:
    """All living instances. Owned by one dispatcher, on one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._members: dict[str, Member] = {}
        self._models_seen: dict[str, float] = {}
        self._connected_at = clock()

    # -- what is heard

    def heard(self, instance: Instance) -> None:
        """A heartbeat. A newer boot of the same name replaces the older one."""
        now = self._clock()
        if instance.state == "dead":
            self._forget(instance)
            return
        member = self._members.get(instance.instance)
        if member is None or member.instance.boot != instance.boot:
            member = self._members[instance.instance] = Member(instance, now)
        member.instance = instance
        member.heard_at = now
        member.arrived = {k: t for k, t in member.arrived.items() if now - t < SEEN_BY_WORKER_S}
        member.departed.clear()
        member.commitments.reconcile(instance.in_flight, now - SEEN_BY_WORKER_S)
        self._note_model(instance, now)

    def snapshot(self, instances: Iterable[Instance]) -> None:
        """The registry: which models exist, and whose lease was set to dead.

        A lease does not make anybody a target: its holder may have died since. Who lives is heard
        within a second.
        """
        now = self._clock()
        for instance in instances:
            if instance.state == "dead":
                self._forget(instance)
            else:
                self._note_model(instance, now)
        for name in [n for n, m in self._members.items() if now - m.heard_at > FORGET_S]:
            del self._members[name]

    def reconnected(self) -> None:
        """Silence until now was ours: everybody gets a fresh period."""
        now = self._clock()
        self._connected_at = now
        for member in self._members.values():
            member.heard_at = now

    def arrived(self, instance: str, key: str, tokens: float) -> None:
        """A request was put into the instance's inbox, by us or by another dispatcher; `tokens`
        is what it will need of the KV cache."""
        if member := self._members.get(instance):
            now = self._clock()
            member.arrived.setdefault(key, now)
            member.commitments.add(key, tokens, now)

    def departed(self, instance: str, key: str) -> None:
        """A request of the instance has its result."""
        if member := self._members.get(instance):
            member.departed.add(key)
            member.commitments.remove(key)

    def probe_failed(self, instance: str) -> None:
        """Leave it out for a while that doubles with each failure in a row."""
        if member := self._members.get(instance):
            pause_s = min(LEFT_OUT_MAX_S, LEFT_OUT_FIRST_S * 2**member.failures)
            member.failures += 1
            member.left_out_until = self._clock() + pause_s

    def probe_answered(self, instance: str) -> None:
        if member := self._members.get(instance):
            member.failures = 0
            member.left_out_until = 0.0

    # -- what is asked

    def targets(self, model: str) -> list[Target]:
        """Instances that may take a request for the model's slug.

        Draining ones get nothing new. Those left out are used only when nobody else is there:
        an instance whose predictor is silent still serves.
        """
        now = self._clock()
        able = [
            member
            for member in self._living(now)
            if member.instance.state == "ready" and _serves(member.instance, model)
        ]
        sound = [member for member in able if member.left_out_until <= now]
        return [member.target() for member in (sound or able)]

    def lives(self, instance: str, boot: str) -> bool:
        """Whether this very boot has been heard within the liveness period."""
        member = self._members.get(instance)
        return (
            member is not None
            and member.instance.boot == boot
            and self._clock() - member.heard_at <= LIVENESS_S
        )

    @property
    def may_judge(self) -> bool:
        """Whether we have listened for long enough to call somebody dead."""
        return self._clock() - self._connected_at > GRACE_S

    def knows_model(self, model: str) -> bool:
        """Whether an instance served the model lately; it may be restarting."""
        if model == DEFAULT_MODEL:
            return True
        seen = self._models_seen.get(model)
        return seen is not None and self._clock() - seen < MODEL_MEMORY_S

    def models(self) -> list[str]:
        """Slugs of the models that are served now."""
        return sorted({model_slug(m.instance.model) for m in self._living(self._clock())})

    @property
    def alive(self) -> int:
        """Instances that were heard within the liveness period."""
        return len(self._living(self._clock()))

    def _living(self, now: float) -> list[Member]:
        return [m for m in self._members.values() if now - m.heard_at <= LIVENESS_S]

    def _note_model(self, instance: Instance, now: float) -> None:
        self._models_seen[model_slug(instance.model)] = now
        if len(self._models_seen) > MODELS_MAX:
            self._models_seen.pop(next(iter(self._models_seen)))

    def _forget(self, instance: Instance) -> None:
        member = self._members.get(instance.instance)
        if member is not None and member.instance.boot == instance.boot:
            del self._members[instance.instance]


def _serves(instance: Instance, model: str) -> bool:
    return model in (DEFAULT_MODEL, model_slug(instance.model))
