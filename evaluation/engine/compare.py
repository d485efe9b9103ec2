"""Theirs beside ours, step by step."""

from collections.abc import Sequence
from dataclasses import dataclass

from evaluation.engine.steps import Step


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far two schedulers agree on one case."""

    case: str
    steps: int
    """Of the longer one."""
    equal: int
    """Steps that are equal in who computes how many tokens, in what order, in whom they preempt,
    and in how many blocks are then free."""
    preemptions: int
    """Theirs."""
    chunked: int
    """Their steps in which a prompt was computed in part."""
    first_difference: str | None

    @property
    def same(self) -> bool:
        return self.equal == self.steps


def compare(
    case: str, prompts: dict[str, int], theirs: Sequence[Step], ours: Sequence[Step]
) -> Comparison:
    """`prompts` has the prompt tokens by key."""
    equal, first = 0, None
    for number in range(max(len(theirs), len(ours))):
        their = theirs[number] if number < len(theirs) else None
        our = ours[number] if number < len(ours) else None
        if their is not None and our is not None and _decision(their) == _decision(our):
            equal += 1
        elif first is None:
            first = f"step {number}: theirs {_told(their)}, ours {_told(our)}"
    return Comparison(
        case,
        steps=max(len(theirs), len(ours)),
        equal=equal,
        preemptions=sum(len(step.preempted) for step in theirs),
        chunked=sum(any(1 < n < prompts[key] for key, n in step.chunks) for step in theirs),
        first_difference=first,
    )


def _decision(step: Step) -> tuple[object, ...]:
    return step.chunks, step.preempted, step.blocks_free


def _told(step: Step | None) -> str:
    if step is None:
        return "none"
    chunks = " ".join(f"{key}:{tokens}" for key, tokens in step.chunks[:6])
    lost = f" preempted {','.join(step.preempted)}" if step.preempted else ""
    return f"{chunks}{lost}, {step.blocks_free} free"
