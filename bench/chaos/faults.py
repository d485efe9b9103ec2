"""Which component breaks, how, when and for how long: seeded, and fair to every kind."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

How = Literal["kill", "stop", "restart", "cut"]
KINDS = ("tagger", "dispatcher", "worker", "predictor", "nats")
WAYS: dict[str, tuple[How, ...]] = {
    "tagger": ("kill", "stop", "restart", "cut"),
    "dispatcher": ("kill", "stop", "restart", "cut"),
    "worker": ("kill", "stop", "restart", "cut"),
    "predictor": ("kill", "stop", "restart", "cut"),
    "nats": ("kill", "stop", "restart"),
}
DOWN_S = (0.2, 4.0)
"""From a kill to the start of its successor; how long a stopped or a cut off one is silent."""
NATS_DOWN_S = (0.2, 2.0)
GAP_S = (1.0, 5.0)
"""Between the ends of one fault and the beginning of the next."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is done to one component."""

    at_s: float
    """From the load's start."""
    component: str
    """As the stack calls it: `worker-i0`."""
    how: How
    down_s: float

    @property
    def kind(self) -> str:
        return self.component.split("-")[0]


def schedule(components: Sequence[str], length_s: float, seed: int) -> list[Fault]:
    """Faults from 2 s on until `length_s`, one after the other.

    Kinds take turns in random order, and so do the ways within a kind, beginning with a kill: so
    that in a long run all of them come often.
    """
    rng = Random(seed)
    turns: list[str] = []
    ways: dict[str, list[How]] = {kind: [] for kind in KINDS}
    faults: list[Fault] = []
    at_s = 2.0
    while at_s < length_s:
        if not turns:
            turns = rng.sample(KINDS, len(KINDS))
        kind = turns.pop()
        if not ways[kind]:
            # Half of all are kills.
            rest = [way for way in WAYS[kind] if way != "kill"]
            ways[kind] = [way for other in rng.sample(rest, len(rest)) for way in (other, "kill")]
        component = rng.choice([name for name in components if name.split("-")[0] == kind])
        down_s = rng.uniform(*(NATS_DOWN_S if kind == "nats" else DOWN_S))
        faults.append(Fault(at_s, component, ways[kind].pop(), down_s))
        at_s += down_s + rng.uniform(*GAP_S)
    return faults
