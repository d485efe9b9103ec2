"""All experiments by name."""

from evaluation.experiments.base import Experiment
from evaluation.experiments.calibration import CALIBRATE
from evaluation.experiments.capacity import CAPACITY
from evaluation.experiments.choices import CHOICES_EXPERIMENT
from evaluation.experiments.sweep import SWEEP

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for experiment in (CALIBRATE, CAPACITY, SWEEP, CHOICES_EXPERIMENT)
}
"""In the order in which `all` runs them: those that share runs stand together."""
