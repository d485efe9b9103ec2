"""One run as plain data, a *cell*: a cluster, what arrives there, and a seed.

Cells travel to other processes and are kept by their content: whatever changes the result is in
`key`. Seeds are paired: with one seed, every policy meets the same requests at the same times.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

import msgspec

from evaluation.experiments.code_version import code_version
from evaluation.experiments.pairwise import pairwise_figures
from evaluation.workloads.base import Arrival
from evaluation.workloads.presets import make_workload
from evaluation.world.cluster import simulate
from evaluation.world.settings import ClusterSettings

Label = str | float
Figures = dict[str, float]
"""What a run was like: `Outcome.summary()`, and what its clones tell where there are any."""
Row = dict[str, Label]
"""A cell's labels, its seed and its figures."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What `make_workload` is asked for, but for the seed."""

    name: str
    requests: int
    rate: float
    """Requests a second."""
    burstiness: float = 1.0
    estimates: str = "tagger-like"
    max_model_len: int = 4096
    folder: str | None = None

    def arrivals(self, seed: int) -> list[Arrival]:
        """Raises UsageError."""
        return make_workload(
            self.name,
            requests=self.requests,
            rate=self.rate,
            seed=seed,
            burstiness=self.burstiness,
            estimates=self.estimates,
            max_model_len=self.max_model_len,
            folder=None if self.folder is None else Path(self.folder),
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. `cluster.seed` does not count: it is `seed`."""

    cluster: ClusterSettings
    workload: Workload
    seed: int
    labels: Mapping[str, Label] = field(default_factory=dict)
    """How the experiment calls it; they change nothing."""

    @property
    def name(self) -> str:
        """For people."""
        return " ".join(f"{title}={value}" for title, value in self.row({}).items())

    def key(self) -> str:
        """The same for cells with the same result, under the same code."""
        parts = (replace(self.cluster, seed=0), self.workload, self.seed, code_version())
        return sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()

    def row(self, figures: Mapping[str, float]) -> Row:
        """Labels, seed and figures, in this order."""
        return {**self.labels, "seed": self.seed, **figures}


def run_cell(cell: Cell) -> Figures:
    """Simulate it. Whatever goes wrong there is raised."""
    cluster = replace(cell.cluster, seed=cell.seed)
    outcome = simulate(cluster, cell.workload.arrivals(cell.seed))
    figures = outcome.summary()
    return figures | pairwise_figures(outcome.lived) if cluster.clone_every else figures
