"""One request on its way through the simulated world."""

from dataclasses import dataclass

from evaluation.workloads.base import Arrival
from pipeline.messages import Prediction, Probe


@dataclass(slots=True, eq=False)
class Job:
    """What arrives, and what became of it. Times are virtual ms from the start of the run."""

    number: int
    arrival: Arrival
    probe: Probe
    """How the dispatcher and the predictors know it: without its true length."""
    instance: int = -1
    prediction: Prediction | None = None
    """Of the instance that got it, where one was asked."""
    decided_at_ms: float = -1.0
    first_token_at_ms: float = -1.0
    finished_at_ms: float = -1.0
    preemptions: int = 0
    migrations: int = 0

    @property
    def key(self) -> str:
        return self.probe.key


def job_of(number: int, arrival: Arrival) -> Job:
    """The job of the arrival with that number."""
    return Job(
        number,
        arrival,
        Probe(
            key=f"c.{number}",
            prompt_tokens=arrival.prompt_tokens,
            max_tokens=arrival.max_tokens,
            estimate=arrival.estimate,
        ),
    )
