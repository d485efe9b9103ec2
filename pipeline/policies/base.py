"""What a policy is: it names the instances to ask, then puts them in order.

No I/O, and no clock but the one it is given: the live dispatcher and the simulated world run the
same code.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pipeline.messages import Prediction, Probe

ALTERNATIVES = 16
"""How many a rule orders that cares for one only: the others are tried where its inbox is full."""

Needs = Literal["nothing", "load", "prediction"]
"""What the shortlist is asked before the choice. Nothing means that no probe is sent."""


@dataclass(frozen=True, slots=True)
class Target:
    """An instance that may take the request."""

    instance: str
    boot: str
    in_flight: int
    """Requests it has yet to finish, as this dispatcher counts them."""
    committed: float = 0.0
    """How much of it is promised (`share_committed`): the share of its KV cache that these will
    have filled when each is at its end, or of its batch where that is full. Above 1 they cannot all
    be there at once."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Instances in order of preference, the reason, and whether answers were missing."""

    order: Sequence[Target]
    reason: str
    fallback: bool = False


class Policy(Protocol):
    """One routing rule. It belongs to one dispatcher."""

    name: str
    """As a person writes it, its parameter included."""
    needs: Needs

    def shortlist(self, targets: Sequence[Target]) -> Sequence[Target]:
        """Which of the targets (at least one) to consider, and to ask where it needs that.

        There may be very many, made as they are read: a rule that needs a few reads a few.
        """
        ...

    def choose(
        self, shortlist: Sequence[Target], predictions: Mapping[str, Prediction], probe: Probe
    ) -> Choice:
        """Order the shortlist, best first.

        `predictions` holds the answers by instance and lacks those who gave none; a policy that
        needs nothing ignores it. `probe` is the newcomer.
        """
        ...


def some_of(targets: Sequence[Target], most: int | None, rng: random.Random) -> Sequence[Target]:
    """`most` different ones, uniformly; all of them where it is None."""
    return targets if most is None else rng.sample(targets, min(most, len(targets)))


def by_committed(targets: Sequence[Target], rng: random.Random) -> list[Target]:
    """Least committed first, ties at random."""
    return sorted(targets, key=lambda target: (target.committed, rng.random()))


def by_in_flight(targets: Sequence[Target], rng: random.Random) -> list[Target]:
    """Fewest requests in flight first, ties at random."""
    return sorted(targets, key=lambda target: (target.in_flight, rng.random()))


def by_cost(
    shortlist: Sequence[Target], costs: Mapping[str, float], rng: random.Random, reason: str
) -> Choice:
    """Lowest cost first, ties at random; those without one behind them, by count in flight.

    With no cost at all the count alone decides, and the choice says so.
    """
    answered = [target for target in shortlist if target.instance in costs]
    silent = by_in_flight([t for t in shortlist if t.instance not in costs], rng)
    if not answered:
        return Choice(silent, "no answer: fewest in flight", fallback=True)
    answered.sort(key=lambda target: (costs[target.instance], rng.random()))
    return Choice([*answered, *silent], reason)
