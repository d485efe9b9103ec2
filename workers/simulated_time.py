"""The simulated engine's time: how long its steps really take, and sitting them out."""

import asyncio
import random

from pipeline.messages import StepTime
from predictor.step_time import StepLoad, step_ms


class TrueStepTime:
    """What the steps really take: the profile, plus overhead, times noise. Needs no clock."""

    def __init__(
        self, coefficients: StepTime, *, overhead_ms: float, noise: float, seed: int | str
    ) -> None:
        self._coefficients = coefficients
        self._overhead_ms = overhead_ms
        self._sigma = noise
        self._rng = random.Random(f"steps:{seed}")

    def next_ms(self, load: StepLoad) -> float:
        """Duration of the next step in ms. Every call draws its own noise, of mean 1."""
        factor = self._rng.lognormvariate(-(self._sigma**2) / 2, self._sigma)
        return (step_ms(self._coefficients, load) + self._overhead_ms) * factor


class Pace:
    """Sleeps to a schedule, so that what one sleep is late the next makes up for.

    It never lags by more than one step: after a stall the steps do not come in a burst.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time()

    async def wait(self, seconds: float) -> None:
        """To the end of a step of that length. Lets other tasks run in any case."""
        now = self._loop.time()
        self._due = max(self._due + seconds, now - seconds)
        await asyncio.sleep(max(0.0, self._due - now))
