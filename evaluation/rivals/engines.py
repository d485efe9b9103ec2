"""The engines of one comparison: the same for our workers and for the servers behind a router."""

from collections.abc import Sequence
from dataclasses import dataclass

from evaluation.rivals.workload import capacity
from workers.simulated_settings import SimulatedSettings

PROFILE = "a100-llama-2-7b"
SLOTS = 16
"""Few enough that requests queue at a rate that two cores can carry."""
OVERHEAD_MS = 6.0
NOISE = 0.05
QUEUE_MAX = 100_000
"""vLLM's queue has no bound: nothing is refused here, whoever sends it."""
SLOWER = 3.0
COMMON = ("profile", "max_num_seqs", "queue_max", "overhead_ms", "noise", "time_scale")
"""Settings that are told to every engine; the others are at their defaults."""


@dataclass(frozen=True, slots=True)
class Engines:
    """Some simulated engines; the first one may be slower."""

    count: int
    time_scale: float
    seed: int
    first_slower: float = 1.0
    """How many times as long the first one's steps take."""

    def settings(self, number: int) -> SimulatedSettings:
        """Of one engine. Each draws its own noise."""
        return SimulatedSettings(
            profile=PROFILE,
            max_num_seqs=SLOTS,
            queue_max=QUEUE_MAX,
            overhead_ms=OVERHEAD_MS,
            noise=NOISE,
            time_scale=self.time_scale * (self.first_slower if number == 0 else 1.0),
            seed=self.seed + number,
        )

    @property
    def ordinary(self) -> SimulatedSettings:
        """Of an engine that is not slower."""
        return self.settings(self.count)

    def common_arguments(self) -> list[str]:
        """NAME=VALUE of what all have in common, seed and slowness apart."""
        return _arguments(self.ordinary, COMMON)

    def arguments(self, number: int) -> list[str]:
        """NAME=VALUE of one engine's settings."""
        return _arguments(self.settings(number), (*COMMON, "seed"))

    def capacity(self) -> float:
        """Requests of the workload a second that all of them together can keep up with."""
        one = capacity(self.ordinary)
        return one * (self.count - 1 + 1 / self.first_slower)


def _arguments(settings: SimulatedSettings, names: Sequence[str]) -> list[str]:
    return [f"{name}={getattr(settings, name)}" for name in names]
