"""What would have happened there? An instance is copied and lives on alone with the request.

Nobody else arrives in a copy, so that a prediction can be compared with what it predicts: the same
requests, with their true lengths, the engine's overhead and its noise.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evaluation.world.instance import SimulatedInstance
from evaluation.world.job import Job
from pipeline.messages import Prediction
from pipeline.policies import Target
from workers.simulated_time import TrueStepTime


@dataclass(frozen=True, slots=True)
class Lived:
    """One candidate of one decision: what was predicted and what its copy did. From the decision
    on, in ms."""

    job: int
    instance: int
    in_flight: int
    chosen: bool
    cost: float
    predicted_ttft_ms: float
    predicted_e2e_ms: float
    ttft_ms: float
    e2e_ms: float


def live_on(instance: SimulatedInstance, job: Job, seed: str) -> tuple[float, float]:
    """TTFT and E2E of the job in a copy of the instance, in ms from now."""
    settings = instance.settings
    scheduler, plan, elapsed_ms = copy.deepcopy(instance.under_way())
    for other in instance.inbox:
        scheduler.add(instance.sequence_of(other))
    own = instance.sequence_of(job)
    scheduler.add(own)
    truth = TrueStepTime(
        settings.step_time, overhead_ms=settings.overhead_ms, noise=settings.noise, seed=seed
    )
    if plan is not None:
        scheduler.complete(plan)
    ttft_ms = -1.0
    while own.generated < own.target_tokens:
        plan = scheduler.step()
        elapsed_ms += truth.next_ms(plan.load)
        scheduler.complete(plan)
        if ttft_ms < 0 and own.generated:
            ttft_ms = elapsed_ms
    return ttft_ms, elapsed_ms


class Cloning:
    """Looks at every n-th decision: what its candidates predicted, and what their copies do."""

    def __init__(self, every: int, seed: int, instances: Sequence[SimulatedInstance]) -> None:
        self._every = every
        self._seed = seed
        self._instances = instances
        self._decisions = 0
        self.lived: list[Lived] = []

    def decided(
        self, job: Job, shortlist: Sequence[Target], predictions: Mapping[str, Prediction]
    ) -> None:
        """A dispatcher has chosen among the shortlist; the job knows where it goes."""
        self._decisions += 1
        if self._decisions % self._every:
            return
        for target in shortlist:
            prediction = predictions[target.instance]
            number = int(target.instance.removeprefix("i"))
            # One seed for all candidates: they differ by their state, not by their luck.
            ttft_ms, e2e_ms = live_on(self._instances[number], job, f"{self._seed}:{job.number}")
            self.lived.append(
                Lived(
                    job=job.number,
                    instance=number,
                    in_flight=target.in_flight,
                    chosen=prediction is job.prediction,
                    cost=prediction.cost,
                    predicted_ttft_ms=prediction.ttft_ms,
                    predicted_e2e_ms=prediction.e2e_ms,
                    ttft_ms=ttft_ms,
                    e2e_ms=e2e_ms,
                )
            )
