"""Small workloads, made here so that these tests need nothing else."""

import random

from evaluation.workloads.base import Arrival
from evaluation.world.settings import InstanceSettings, instance
from pipeline.messages import LengthEstimate


def arrival(at_ms: float, prompt: int, response: int, *, p50: float | None = None) -> Arrival:
    middle = response if p50 is None else p50
    estimate = LengthEstimate(p10=middle / 2, p50=middle, p90=middle * 2, source="test")
    return Arrival(at_ms, prompt, response, estimate)


def arrivals(count: int, *, rate: float, seed: int = 0, longest: int = 400) -> list[Arrival]:
    """Poisson at `rate` a second, lengths uniform, estimates off by up to a factor of 2."""
    rng = random.Random(seed)
    at_ms, made = 0.0, []
    for _ in range(count):
        at_ms += rng.expovariate(rate) * 1000
        response = rng.randint(1, longest)
        p50 = response * 2 ** rng.uniform(-1, 1)
        made.append(arrival(at_ms, rng.randint(1, longest), response, p50=p50))
    return made


def small(**limits: object) -> InstanceSettings:
    """An engine in which blocks run out: 60 of 16 tokens, 8 at a time."""
    own = {"kv_blocks": 60, "max_num_seqs": 8, "max_model_len": 900, **limits}
    return instance(overhead_ms=2.0, limits=own)
