"""What a scheduler decided in one step, and what it was asked to schedule. The same for theirs and
for ours, so that both can be held beside each other."""

import msgspec

from pipeline.messages import EngineLimits


class Arrival(msgspec.Struct, frozen=True):
    """One request: it is there when step `at_step` is decided."""

    key: str
    at_step: int
    prompt: list[int]
    """Token ids."""
    tokens: int
    """It generates exactly so many."""


class Case(msgspec.Struct, frozen=True):
    """Requests for an engine that was idle before, and is again after."""

    name: str
    arrivals: list[Arrival]
    """In the order of `at_step`."""


class Step(msgspec.Struct, frozen=True):
    """One step's decision."""

    chunks: list[tuple[str, int]]
    """Who computes how many tokens, in the order in which they were given."""
    preempted: list[str]
    """In the order in which they lost their blocks."""
    blocks_free: int
    """After it was decided."""
    duration_ms: float = 0.0
    """Theirs only."""


class Script(msgspec.Struct, frozen=True):
    """What the engine's side is to run: one engine, the cases one after the other."""

    model: str
    """A folder."""
    limits: EngineLimits
    prefix_caching: bool
    cases: list[Case]


class Trace(msgspec.Struct, frozen=True):
    """All steps of one case, until everybody had ended."""

    case: str
    steps: list[Step]


class Traced(msgspec.Struct, frozen=True):
    """All steps of a case whose requests came when they could: with the steps before which they
    were there."""

    case: Case
    steps: list[Step]
