"""Resident memory of processes, and whether it stays where it is."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20
FLAT_MIB = 16.0
"""Growth that is no finding: caches that fill, and an allocator that rounds up."""
FLAT_SHARE = 0.1


def rss_mib(pid: int) -> float:
    """Resident memory of a process now, in MiB. Raises FileNotFoundError where it is gone."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_MIB


@dataclass(frozen=True, slots=True)
class Growth:
    """The straight line through the samples of one process."""

    mean_mib: float
    slope_mib_min: float
    grown_mib: float
    """Of the line, from the first sample to the last."""

    @classmethod
    def of(cls, at_s: Sequence[float], mib: Sequence[float]) -> "Growth":
        """Least squares. Raises ValueError for fewer than two samples."""
        if len(at_s) < 2:
            raise ValueError(f"{len(at_s)} samples: a slope needs two")
        slope_s, _ = np.polyfit(at_s, mib, 1)
        return cls(float(np.mean(mib)), float(slope_s) * 60, float(slope_s) * (at_s[-1] - at_s[0]))

    @property
    def flat(self) -> bool:
        return self.grown_mib <= max(FLAT_MIB, FLAT_SHARE * self.mean_mib)
