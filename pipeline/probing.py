"""Asking predictors, all at once and under one deadline. A silent one is a candidate less."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from pipeline.bus import Bus
from pipeline.codec import decode, encode
from pipeline.errors import BadRequest, BusError, RequestTimeout
from pipeline.fleet import Fleet
from pipeline.messages import Candidate, Prediction, Probe, TaggedRequest, wall_ms
from pipeline.metrics import PROBES
from pipeline.policies import Target

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Answers:
    """What came back: predictions by instance, and the record of every candidate."""

    predictions: Mapping[str, Prediction]
    candidates: Sequence[Candidate]


async def ask(
    bus: Bus, fleet: Fleet, tagged: TaggedRequest, shortlist: Sequence[Target], timeout_s: float
) -> Answers:
    """Probe every instance of the shortlist."""
    probe = encode(
        Probe(
            key=tagged.key,
            prompt_tokens=tagged.prompt_tokens,
            max_tokens=tagged.max_tokens,
            estimate=tagged.estimate,
            priority=tagged.priority,
            deadline_ms=tagged.deadline_at_ms - wall_ms(),
        )
    )
    candidates = await asyncio.gather(
        *(_ask_one(bus, fleet, target, probe, timeout_s) for target in shortlist)
    )
    return Answers(
        {c.instance: c.prediction for c in candidates if c.prediction is not None}, candidates
    )


async def _ask_one(
    bus: Bus, fleet: Fleet, target: Target, probe: bytes, timeout_s: float
) -> Candidate:
    name, in_flight = target.instance, target.in_flight
    try:
        reply = await bus.request(bus.subjects.predict(name), probe, timeout_s=timeout_s)
        prediction = decode(reply.data, Prediction)
    except (BusError, BadRequest) as error:
        outcome: str = "timeout" if isinstance(error, RequestTimeout) else "failed"
        PROBES.labels(outcome).inc()
        fleet.probe_failed(name)
        log.info("probe_failed", instance=name, outcome=outcome, error=str(error))
        if outcome == "timeout":
            return Candidate(instance=name, outcome="timeout", in_flight=in_flight)
        return Candidate(instance=name, outcome="failed", in_flight=in_flight)
    PROBES.labels("answered").inc()
    fleet.probe_answered(name)
    return Candidate(instance=name, outcome="predicted", prediction=prediction, in_flight=in_flight)


def not_probed(shortlist: Sequence[Target]) -> list[Candidate]:
    """The record of candidates that a policy judges without asking; bounded for the wire."""
    return [
        Candidate(instance=t.instance, outcome="not_probed", in_flight=t.in_flight)
        for t in shortlist[:CANDIDATES_RECORDED_MAX]
    ]


CANDIDATES_RECORDED_MAX = 16
