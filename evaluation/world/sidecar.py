"""The predictor beside a simulated instance: the view and the oracle that run live."""

from evaluation.world.agenda import Agenda
from evaluation.world.instance import SimulatedInstance
from evaluation.world.job import Job
from evaluation.world.settings import ClusterSettings
from pipeline.messages import Prediction, Probe, StateUpdate
from pipeline.subjects import Header
from predictor.service import Oracle
from predictor.view import InstanceView

IDLE_REFRESH_S = 1.0
"""How often an idle worker publishes; here its state is renewed when somebody asks."""


class Sidecar:
    """Hears of an instance's states and of what is on its way to it; answers probes."""

    def __init__(
        self, instance: SimulatedInstance, cluster: ClusterSettings, agenda: Agenda
    ) -> None:
        self._instance = instance
        self._agenda = agenda
        self._hop_ms = cluster.delays.hop_ms
        self._view = InstanceView(
            instance.name, agenda.seconds, probed_expires_s=cluster.tentative_ms / 1000
        )
        self._oracle = Oracle(cluster.score)
        self._heard_at_s = 0.0
        instance.publish = self._on_publish
        self._hear(instance.state())

    def _on_publish(self, update: StateUpdate) -> None:
        self._agenda.after(self._hop_ms, lambda: self._hear(update))

    def _hear(self, update: StateUpdate) -> None:
        self._heard_at_s = self._agenda.seconds()
        reason = self._view.apply(update)
        if reason is not None:
            raise RuntimeError(f"{self._instance.name}: its state was dropped: {reason}")

    def queued(self, job: Job) -> None:
        """A dispatcher put the request into the instance's inbox."""
        estimate = job.arrival.estimate
        reason = self._view.queued(
            {
                Header.REQUEST: job.key,
                Header.PROMPT_TOKENS: str(job.arrival.prompt_tokens),
                Header.MAX_TOKENS: str(job.arrival.max_tokens or 0),
                Header.ESTIMATE: f"{estimate.p10!r},{estimate.p50!r},{estimate.p90!r}",
            }
        )
        if reason is not None:
            raise RuntimeError(f"{self._instance.name}: {job.key} was not counted: {reason}")

    def answer(self, probe: Probe) -> Prediction:
        """As predictor/service.py answers it, but for the judgement of its own record."""
        if self._instance.idle and self._agenda.seconds() - self._heard_at_s >= IDLE_REFRESH_S:
            self._hear(self._instance.state())
        view = self._view.view()
        prediction = self._oracle.predict(view, probe)
        if probe.kind == "simulate":
            self._view.probed(probe)
        return prediction
