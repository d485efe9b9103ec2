"""What an engine did, span by span: the record that a newcomer is laid over."""

from typing import NamedTuple


class Span(NamedTuple):
    """Some steps that the engine took, all with the same batch; predictor/overlay.py reads them."""

    steps: int
    tokens: int
    """Computed in each step."""
    running: int
    """Requests in the running list."""
    decoding: int
    context: int
    """KV entries that the decoding ones read in the first step."""
    slot: int
    """The decode clock at the first step, modulo the block size."""
    blocks: list[int]
    """How many blocks the decoding ones take in a step, by slot; empty where nobody will ask:
    the span is a single step, or not open."""
    open: bool
    """Nobody waits once the step is decided, and it may admit: a newcomer would be tried."""
    free_first: int
    """Blocks free during the first step and the last."""
    free_last: int
    free_min: int
    """From the start of the simulation until the last step."""
    preemptions: int
    """From the start."""
    steps_before: int
    before_ms: float
    after_ms: float
    finished: int
    """From the start; those that leave after the last step included."""
