"""Experiments as small as they can be: a few dozen requests, two seeds, two contenders."""

import os
from dataclasses import replace

from evaluation.experiments.cells import Cell, Workload
from evaluation.experiments.contenders import LEAST_OUTSTANDING_OF_TWO, OURS
from evaluation.experiments.scale import Scale
from evaluation.world.settings import ClusterSettings

CHOSEN = (LEAST_OUTSTANDING_OF_TWO, OURS)
SCALE = Scale(quick=True, seeds=(0, 1), requests=24, rates=(16.0, 30.0), contenders=CHOSEN)
CLUSTER = ClusterSettings(instances=ClusterSettings().instances[:3], policy="least_outstanding")


def die(_cell: Cell) -> None:
    """What a process does that the system kills."""
    os._exit(1)


def cell(seed: int = 0, **workload: object) -> Cell:
    """One that takes milliseconds."""
    arrivals = replace(Workload("synthetic", 12, 4.0), **workload)  # type: ignore[arg-type]
    return Cell(CLUSTER, arrivals, seed, {"contender": CLUSTER.policy})
