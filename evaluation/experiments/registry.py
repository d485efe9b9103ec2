"""All experiments by name."""

from evaluation.experiments.accuracy import ACCURACY
from evaluation.experiments.base import Experiment
from evaluation.experiments.burst import BURST
from evaluation.experiments.calibration import CALIBRATE
from evaluation.experiments.capacity import CAPACITY
from evaluation.experiments.choices import CHOICES
from evaluation.experiments.dispatchers import DISPATCHERS
from evaluation.experiments.generality import BATCH, CHUNK, QWEN, V0
from evaluation.experiments.hetero import HETERO
from evaluation.experiments.migration import MIGRATION
from evaluation.experiments.noise import NOISE
from evaluation.experiments.oracle import ORACLE
from evaluation.experiments.overhead import OVERHEAD
from evaluation.experiments.race import RACE
from evaluation.experiments.score import SCORE
from evaluation.experiments.stale import STALE
from evaluation.experiments.sweep import SWEEP
from evaluation.experiments.tentative import TENTATIVE

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        CALIBRATE,
        CAPACITY,
        SWEEP,
        CHOICES,
        OVERHEAD,
        ORACLE,
        NOISE,
        BURST,
        BATCH,
        CHUNK,
        QWEN,
        V0,
        HETERO,
        STALE,
        DISPATCHERS,
        TENTATIVE,
        RACE,
        ACCURACY,
        MIGRATION,
        SCORE,
    )
}
"""In the order in which `all` runs them: those that share runs stand together."""
