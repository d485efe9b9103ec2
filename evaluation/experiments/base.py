"""What an experiment is: cells to run, and how to read their rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from evaluation.experiments.cells import Cell
from evaluation.experiments.plots import Panel
from evaluation.experiments.rows import Rows
from evaluation.experiments.scale import Scale
from evaluation.experiments.tables import Table

PAPERS_REQUESTS = 10_000
"""Of one of the paper's runs. Beyond its capacity a cluster falls behind for as long as requests
come, so that what is compared with the paper's capacities has to last as long."""
REQUESTS = 4_000
"""Where policies are compared with each other: `all` has to end within two hours on two cores."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What the rows show."""

    tables: Sequence[Table]
    panels: Sequence[Panel]
    paragraphs: Sequence[str] = ()
    """In words, before the tables."""
    figures: Mapping[str, object] = field(default_factory=dict)
    """For summary.json, beside the means that every experiment has there."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """A name on the command line."""

    name: str
    line: str
    """What it shows, for `--help`."""
    cells: Callable[[Scale], list[Cell]]
    findings: Callable[[Rows, Scale], Findings]
    requests: int = REQUESTS
    """Of one run, unless somebody says otherwise."""
    takes_policies: bool = False
    """Whether `--policies` says who is compared."""
