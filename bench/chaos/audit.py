"""What a run of faults came to: pure counting over what was seen."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.chaos.faults import Fault
from pipeline.messages import OutputEvent, Result

DONE_SHARE_MIN = 0.99


@dataclass(slots=True)
class Seen:
    """One request as its client saw it. Times are seconds from the load's start."""

    request: str
    sent_at_s: float
    accepted: bool = False
    """The server said that it had stored it, or a result shows that it had."""
    refused: str | None = None
    """It was not accepted: why."""
    ended_at_s: float | None = None
    text: str | None = None
    """The answer that the client presents."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Recovery:
    """From a fault until all that was in hand at that moment had ended."""

    fault: Fault
    seconds: float


@dataclass(frozen=True, slots=True)
class Audit:
    """The figures of bench-results/chaos.json."""

    accepted: int
    refused: dict[str, int]
    done: int
    errors: dict[str, int]
    """By code."""
    lost: int
    """Accepted, and no result; or still in a work queue when nobody works any more."""
    duplicate_finals: int
    """Requests of which two different finals were said, or another than is stored."""
    repeated_finals: int
    """Said twice, and the same: allowed."""
    undetected_gaps: int
    """Requests whose client presents another text than is stored."""
    resumed: int
    restarted: int
    kills: dict[str, int]
    faults: dict[str, int]
    recovery_s: dict[str, dict[str, float]]
    """By `kind how`: median and worst."""
    slowest_recovery_s: float

    @property
    def good(self) -> bool:
        broken = self.lost + self.duplicate_finals + self.undetected_gaps
        done_enough = self.accepted > 0 and self.done >= DONE_SHARE_MIN * self.accepted
        return not broken and done_enough


def audit(
    seen: Sequence[Seen],
    results: Mapping[str, Result],
    finals: Mapping[str, Sequence[OutputEvent]],
    faults: Sequence[Fault],
    *,
    stuck: int,
    resumed: int,
    restarted: int,
) -> Audit:
    """`results` is what RESULTS holds, `finals` what was said on the raw subjects, `stuck` how many
    messages were left in work queues."""
    accepted = [one for one in seen if one.accepted or one.request in results]
    stored = [results[one.request] for one in accepted if one.request in results]
    recoveries = _recoveries(accepted, faults)
    by_kind = defaultdict(list)
    for recovery in recoveries:
        by_kind[f"{recovery.fault.kind} {recovery.fault.how}"].append(recovery.seconds)
    return Audit(
        accepted=len(accepted),
        refused=dict(Counter(one.refused for one in seen if one.refused)),
        done=sum(result.status == "done" for result in stored),
        errors=dict(Counter(r.error.code for r in stored if r.error is not None)),
        lost=len(accepted) - len(stored) + stuck,
        duplicate_finals=sum(
            _differ(finals.get(one.request, ()), results.get(one.request)) for one in accepted
        ),
        repeated_finals=sum(max(0, len(events) - 1) for events in finals.values()),
        undetected_gaps=sum(_spliced(one, results.get(one.request)) for one in accepted),
        resumed=resumed,
        restarted=restarted,
        kills=dict(Counter(fault.kind for fault in faults if fault.how == "kill")),
        faults=dict(Counter(f"{fault.kind} {fault.how}" for fault in faults)),
        recovery_s={
            name: {"median": median(times), "worst": max(times)}
            for name, times in sorted(by_kind.items())
        },
        slowest_recovery_s=max((r.seconds for r in recoveries), default=0.0),
    )


def _differ(events: Sequence[OutputEvent], result: Result | None) -> bool:
    """Two finals that are not the same, or one that is not the stored one's."""
    told = {(e.event, e.attempt, e.sequence, e.finish_reason) for e in events}
    if result is not None:
        told.add((result.status, result.attempt, result.sequence, result.finish_reason))
    return len(told) > 1


def _spliced(one: Seen, result: Result | None) -> bool:
    return one.text is not None and result is not None and one.text != result.text


def _recoveries(accepted: Sequence[Seen], faults: Sequence[Fault]) -> list[Recovery]:
    recoveries = []
    for fault in faults:
        in_hand = [
            one.ended_at_s - fault.at_s
            for one in accepted
            if one.ended_at_s is not None and one.sent_at_s <= fault.at_s < one.ended_at_s
        ]
        recoveries.append(Recovery(fault, max(in_hand, default=0.0)))
    return recoveries
