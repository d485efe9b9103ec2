"""A dispatcher in virtual time: the pipeline's policy between the tagger and the inboxes.

It counts what is in flight as the live one does: its own dispatches at once, everybody's dispatches
and ends when their messages arrive.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from time import thread_time
from typing import overload

from msgspec.structs import replace

from evaluation.world.agenda import Agenda
from evaluation.world.job import Job
from evaluation.world.settings import ClusterSettings
from evaluation.world.sidecar import Sidecar
from pipeline.commitments import share_committed
from pipeline.messages import EngineLimits, Prediction
from pipeline.policies import Target, make_policy
from pipeline.queued import queued_of

Deliver = Callable[[Job, int], None]
Decided = Callable[[Job, Sequence[Target], Mapping[str, Prediction]], None]


class Targets(Sequence[Target]):
    """All instances as targets, each made when it is looked at: there may be a thousand."""

    def __init__(
        self,
        names: Sequence[str],
        in_flight: Sequence[int],
        committed_tokens: Sequence[float],
        limits: Sequence[EngineLimits],
    ) -> None:
        self._names, self._in_flight = names, in_flight
        self._committed_tokens, self._limits = committed_tokens, limits

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, place: int) -> Target: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Target]: ...
    def __getitem__(self, place: int | slice) -> Target | Sequence[Target]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        in_flight = self._in_flight[place]
        committed = share_committed(self._committed_tokens[place], in_flight, self._limits[place])
        return Target(self._names[place], "b", in_flight, committed)


class SimulatedDispatcher:
    """One of possibly several. `deliver` puts a job into the inbox of the instance chosen."""

    def __init__(
        self,
        number: int,
        cluster: ClusterSettings,
        agenda: Agenda,
        deliver: Deliver,
    ) -> None:
        self._agenda = agenda
        self._delays = cluster.delays
        self._latency_noise = cluster.latency_noise
        self._deliver = deliver
        self._rng = random.Random(f"dispatcher:{cluster.seed}:{number}")
        self.policy = make_policy(cluster.policy, self._rng, clock=agenda.seconds)
        self._numbers = {f"i{n}": n for n in range(len(cluster.instances))}
        self._in_flight = [0] * len(self._numbers)
        self._committed_tokens = [0.0] * len(self._numbers)
        self._targets = Targets(
            list(self._numbers),
            self._in_flight,
            self._committed_tokens,
            [instance.limits for instance in cluster.instances],
        )
        self.sidecars: Sequence[Sidecar] = ()
        """One an instance, where the policy asks."""
        self.decided: Decided | None = None
        """Told of every choice."""
        self.probes = 0
        self.decision_s = 0.0
        """CPU time of policies and of the predictors that they asked."""

    @property
    def asks(self) -> bool:
        """Whether its policy sends probes."""
        return self.policy.needs != "nothing"

    def place(self, job: Job) -> None:
        """Decide where it goes; with probes that takes their time."""
        started = thread_time()
        shortlist = self.policy.shortlist(self._targets)
        self.decision_s += thread_time() - started
        if not self.asks:
            self._choose(job, shortlist, {})
            return
        self._agenda.after(self._delays.probe_ms / 2, lambda: self._ask(job, shortlist))

    def _ask(self, job: Job, shortlist: Sequence[Target]) -> None:
        started = thread_time()
        kind = "load" if self.policy.needs == "load" else "simulate"
        probe = replace(job.probe, kind=kind)
        predictions = {
            target.instance: self._noisy(
                self.sidecars[self._numbers[target.instance]].answer(probe)
            )
            for target in shortlist
        }
        self.probes += len(predictions)
        self.decision_s += thread_time() - started
        self._agenda.after(
            self._delays.probe_ms / 2, lambda: self._choose(job, shortlist, predictions)
        )

    def _choose(
        self, job: Job, shortlist: Sequence[Target], predictions: dict[str, Prediction]
    ) -> None:
        started = thread_time()
        choice = self.policy.choose(shortlist, predictions, job.probe)
        self.decision_s += thread_time() - started
        best = choice.order[0].instance
        job.decided_at_ms = self._agenda.now_ms
        if self.policy.needs == "prediction":
            job.prediction = predictions[best]
        number = self._numbers[best]
        self.arrived(number, job)
        if self.decided is not None:
            self.decided(job, shortlist, predictions)
        self._deliver(job, number)

    def _noisy(self, prediction: Prediction) -> Prediction:
        if not self._latency_noise:
            return prediction
        factor = min(5.0, max(0.1, 1 + self._rng.gauss(0, self._latency_noise)))
        return replace(prediction, cost=prediction.cost * factor)

    def arrived(self, number: int, job: Job) -> None:
        """The request was stored in the instance's inbox, by this dispatcher or another."""
        self._in_flight[number] += 1
        self._committed_tokens[number] += queued_of(job.probe).committed_tokens

    def departed(self, number: int, job: Job) -> None:
        """The instance no longer has the request: it ended, or moved."""
        self._in_flight[number] -= 1
        self._committed_tokens[number] -= queued_of(job.probe).committed_tokens
