"""How large an experiment is: seeds, requests, rates, and where its lengths come from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from evaluation.experiments.contenders import Contender

T = TypeVar("T")

PAPERS_LENGTHS = "sharegpt-llama2"
WITHOUT_FILES = "synthetic"


@dataclass(frozen=True, slots=True)
class Scale:
    """What a person chose; an experiment picks the rest by `quick`."""

    quick: bool
    seeds: tuple[int, ...]
    requests: int
    """Of one run."""
    folder: str | None = None
    """With the data files; None where there are none."""
    rates: tuple[float, ...] | None = None
    """Instead of the experiment's own."""
    contenders: tuple[Contender, ...] | None = None
    """Instead of the experiment's own, ours among them."""

    @property
    def workload(self) -> str:
        """The paper's lengths, or without data files the mixture that is fitted to them."""
        return WITHOUT_FILES if self.folder is None else PAPERS_LENGTHS

    def pick(self, *, quick: T, full: T) -> T:
        return quick if self.quick else full

    def compared(self, usual: tuple[Contender, ...]) -> tuple[Contender, ...]:
        """Those that were chosen, else the usual ones."""
        return self.contenders or usual

    def rates_of(self, *, quick: Sequence[float], full: Sequence[float]) -> tuple[float, ...]:
        """Requests a second, lowest first."""
        return tuple(sorted(self.rates or self.pick(quick=quick, full=full)))
