"""The simulated cluster: arrivals go through a dispatcher to an instance, and come out finished.

outcome = simulate(ClusterSettings(policy="power_of_two"), arrivals)
"""

from collections.abc import Callable, Sequence
from functools import partial

from evaluation.workloads.base import Arrival
from evaluation.world.agenda import Agenda
from evaluation.world.clones import Cloning
from evaluation.world.dispatcher import SimulatedDispatcher
from evaluation.world.instance import SimulatedInstance
from evaluation.world.job import Job, job_of
from evaluation.world.migration import Migration
from evaluation.world.occupancy import Occupancy
from evaluation.world.outcome import Outcome, outcome_of
from evaluation.world.settings import ClusterSettings
from evaluation.world.sidecar import Sidecar

Progress = Callable[[int], None]
"""Told how many requests have finished in all."""


class Cluster:
    """All parts, in virtual time. One run each."""

    def __init__(self, settings: ClusterSettings, arrivals: Sequence[Arrival]) -> None:
        self.settings = settings
        self.agenda = agenda = Agenda()
        self.jobs = [job_of(number, arrival) for number, arrival in enumerate(arrivals)]
        self.instances = [
            SimulatedInstance(number, settings, agenda, self._ended)
            for number in range(len(settings.instances))
        ]
        self.dispatchers = [
            SimulatedDispatcher(number, settings, agenda, partial(self._deliver, number))
            for number in range(settings.dispatchers)
        ]
        self._sidecars: list[Sidecar] = []
        if self.dispatchers[0].asks:
            self._sidecars += [Sidecar(instance, settings, agenda) for instance in self.instances]
            for dispatcher in self.dispatchers:
                dispatcher.sidecars = self._sidecars
        self._cloning: Cloning | None = None
        if settings.clone_every:
            self._cloning = Cloning(settings.clone_every, settings.seed, self.instances)
            for dispatcher in self.dispatchers:
                dispatcher.decided = self._cloning.decided
        self._migration: Migration | None = None
        if settings.migration is not None:
            self._migration = Migration(settings.migration, agenda, self.instances, self._moved)
        self._occupancy = Occupancy(agenda, self.instances)
        self._finished = 0
        self._progress: Progress = lambda _: None

    def run(self, progress: Progress | None = None) -> Outcome:
        """Until every request has finished."""
        if progress is not None:
            self._progress = progress
        self.start()
        while self._finished < len(self.jobs):
            if not self.agenda.step():
                missing = len(self.jobs) - self._finished
                raise RuntimeError(f"nothing is left to happen, but {missing} did not finish")
        lived = self._cloning.lived if self._cloning is not None else ()
        return outcome_of(
            self.jobs,
            self.instances,
            self.dispatchers,
            lived,
            self._occupancy,
            self.agenda.now_ms,
        )

    def start(self) -> None:
        """Plan the first arrival, and the first looks and rounds of migration."""
        self._arrive(0)
        self._occupancy.start()
        if self._migration is not None:
            self._migration.start()

    def _arrive(self, number: int) -> None:
        """Plan this arrival, which plans the next: the agenda stays small."""
        if number == len(self.jobs):
            self._occupancy.stop()
            return
        job = self.jobs[number]
        dispatcher = self.dispatchers[number % len(self.dispatchers)]

        def take() -> None:
            self._arrive(number + 1)
            self.agenda.after(self.settings.delays.tagger_ms, partial(dispatcher.place, job))

        self.agenda.at(job.arrival.at_ms, take)

    def _deliver(self, dispatcher: int, job: Job, instance: int) -> None:
        """Into the instance's inbox; its echo reaches the predictor and the other dispatchers."""
        self.agenda.after(
            self.settings.delays.hop_ms, partial(self._stored, dispatcher, job, instance)
        )

    def _stored(self, dispatcher: int, job: Job, instance: int) -> None:
        if self._sidecars and self.settings.hears_dispatches:
            self._sidecars[instance].queued(job)
        for number, other in enumerate(self.dispatchers):
            if number != dispatcher:
                other.arrived(instance, job)
        self.instances[instance].arrive(job)

    def _ended(self, job: Job) -> None:
        self._finished += 1
        self._progress(self._finished)
        self.agenda.after(self.settings.delays.hop_ms, partial(self._departed, job.instance, job))

    def _moved(self, job: Job, source: int, destination: int) -> None:
        self.agenda.after(self.settings.delays.hop_ms, partial(self._departed, source, job))
        for dispatcher in self.dispatchers:
            dispatcher.arrived(destination, job)

    def _departed(self, instance: int, job: Job) -> None:
        for dispatcher in self.dispatchers:
            dispatcher.departed(instance, job)


def simulate(
    settings: ClusterSettings, arrivals: Sequence[Arrival], progress: Progress | None = None
) -> Outcome:
    """Run the arrivals through the cluster, until the last has finished.

    Raises NeverFitsError for an arrival that no engine of its instance could ever run.
    """
    return Cluster(settings, arrivals).run(progress)
