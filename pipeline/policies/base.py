"""What a policy is: it names the instances to ask, then puts them in order.

No I/O and no clock: the live dispatcher and the simulated world run the same code.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pipeline.messages import Prediction


@dataclass(frozen=True, slots=True)
class Target:
    """An instance that may take the request."""

    instance: str
    boot: str
    in_flight: int
    """Requests it has yet to finish, as this dispatcher counts them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Instances in order of preference, the reason, and whether predictions were missing."""

    order: Sequence[Target]
    reason: str
    fallback: bool = False


class Policy(Protocol):
    """One routing rule."""

    name: str
    needs_probe: bool
    """Whether `choose` wants predictions of the shortlist; without, no probe is sent."""

    def shortlist(self, targets: Sequence[Target]) -> Sequence[Target]:
        """Which of the targets (at least one) to consider, and to probe where it needs that."""
        ...

    def choose(self, shortlist: Sequence[Target], predictions: Mapping[str, Prediction]) -> Choice:
        """Order the shortlist, best first. `predictions` lacks those who did not answer."""
        ...


def by_in_flight(targets: Sequence[Target], rng: random.Random) -> list[Target]:
    """Fewest requests in flight first, ties at random."""
    return sorted(targets, key=lambda target: (target.in_flight, rng.random()))
