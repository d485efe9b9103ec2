"""A real vLLM whose steps take as long as on a published GPU. Imported by vLLM in its own process.

Two engines that compute on one small machine slow each other down, by how much depends on what the
other does, and nobody could predict that. So a tiny model computes, its steps are stretched to the
profile's duration with noise, and all else is vLLM's own: its scheduler, its processes, its queues.
"""

import random
import time
from typing import Any

from predictor.step_time import PROFILES, StepLoad, step_ms
from workers.vllm_engine.scheduler import ReportingScheduler

PROFILE = "a30-llama-2-7b"
NOISE = 0.05
"""Of a step's duration, log-normal."""


class PacedScheduler(ReportingScheduler):
    """Decides nothing either; a step is held back until its time has passed."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._noise = random.Random(0)

    def update_from_output(self, *args: Any, **more: Any) -> Any:
        started, sample = self._under_way[0]
        load = StepLoad(sample.tokens, sample.prefill_work, sample.context_tokens, sample.sequences)
        if load.tokens:
            duration_ms = step_ms(PROFILES[PROFILE], load) * self._noise.lognormvariate(0, NOISE)
            time.sleep(max(0.0, duration_ms / 1000 - (time.perf_counter() - started)))
        return super().update_from_output(*args, **more)
