"""How full the KV caches are, and how evenly: looked at every second while requests arrive (the
paper's figure 7)."""

from collections.abc import Sequence

import numpy as np

from evaluation.world.agenda import Agenda
from evaluation.world.instance import SimulatedInstance

EVERY_MS = 1_000.0


class Occupancy:
    """Looks at the instances from `start` until `stop`."""

    def __init__(self, agenda: Agenda, instances: Sequence[SimulatedInstance]) -> None:
        self._agenda = agenda
        self._instances = instances
        self._free: list[list[float]] = []
        self._stopped = False

    def start(self) -> None:
        self._agenda.after(EVERY_MS, self._look_again)

    def stop(self) -> None:
        """The last look."""
        self._stopped = True
        self._look()

    def _look(self) -> None:
        self._free.append([there.blocks_free_share for there in self._instances])

    def _look_again(self) -> None:
        if not self._stopped:
            self._look()
            self._agenda.after(EVERY_MS, self._look_again)

    def free(self) -> float:
        """Mean share of blocks that was free, over instances and time."""
        return float(np.mean(self._free))

    def spread(self) -> float:
        """Standard deviation of that share over the instances at one time, its mean over time."""
        return float(np.mean(np.std(self._free, axis=1)))
