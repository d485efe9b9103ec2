"""Asking predictors, all at once and under one deadline. A silent one is a candidate less."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import structlog

from pipeline.bus import Bus
from pipeline.codec import decode, encode
from pipeline.errors import BadRequest, BusError, RequestTimeout, ServiceRefused
from pipeline.fleet import Fleet
from pipeline.messages import Candidate, Prediction, Probe, TaggedRequest, wall_ms
from pipeline.metrics import PROBE_SECONDS, PROBES
from pipeline.policies import Needs, Target

log = structlog.get_logger()

CANDIDATES_RECORDED_MAX = 16
"""In the decision; a rule that considers all of a large fleet would fill every message."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What came back: predictions by instance, and the record of everyone that was asked."""

    predictions: Mapping[str, Prediction]
    candidates: Mapping[str, Candidate]


NOBODY_ASKED = Answers({}, {})


def probe_for(tagged: TaggedRequest, needs: Needs) -> Probe:
    """The question about a request that a policy with these needs asks."""
    return Probe(
        key=tagged.key,
        prompt_tokens=tagged.prompt_tokens,
        max_tokens=tagged.max_tokens,
        estimate=tagged.estimate,
        priority=tagged.priority,
        deadline_ms=tagged.deadline_at_ms - wall_ms(),
        kind="load" if needs == "load" else "simulate",
    )


async def ask(
    bus: Bus, fleet: Fleet, probe: Probe, shortlist: Sequence[Target], timeout_s: float
) -> Answers:
    """Put the question to every instance of the shortlist."""
    body = encode(probe)
    candidates = {}
    predictions = {}
    for candidate, prediction in await asyncio.gather(
        *(_ask_one(bus, fleet, target, body, timeout_s) for target in shortlist)
    ):
        candidates[candidate.instance] = candidate
        if prediction is not None:
            predictions[candidate.instance] = prediction
    return Answers(predictions, candidates)


async def _ask_one(
    bus: Bus, fleet: Fleet, target: Target, body: bytes, timeout_s: float
) -> tuple[Candidate, Prediction | None]:
    name, in_flight = target.instance, target.in_flight
    asked_at = time.monotonic()
    try:
        reply = await bus.request(bus.subjects.predict(name), body, timeout_s=timeout_s)
        prediction = decode(reply.data, Prediction)
    except ServiceRefused as error:  # it is well: to leave it out would punish it for our question
        PROBES.labels("refused").inc()
        fleet.probe_answered(name)
        log.info("probe_refused", instance=name, error=str(error))
        return Candidate(instance=name, outcome="refused", in_flight=in_flight), None
    except (BusError, BadRequest) as error:
        outcome: Literal["timeout", "failed"] = (
            "timeout" if isinstance(error, RequestTimeout) else "failed"
        )
        PROBES.labels(outcome).inc()
        fleet.probe_failed(name)
        log.info("probe_failed", instance=name, outcome=outcome, error=str(error))
        return Candidate(instance=name, outcome=outcome, in_flight=in_flight), None
    PROBES.labels("answered").inc()
    PROBE_SECONDS.observe(time.monotonic() - asked_at)
    fleet.probe_answered(name)
    return _answered(name, in_flight, prediction), prediction


def _answered(name: str, in_flight: int, prediction: Prediction) -> Candidate:
    """A load is recorded as one, not as a prediction of no time at all."""
    if prediction.load is not None:
        return Candidate(
            instance=name, outcome="reported", load=prediction.load, in_flight=in_flight
        )
    return Candidate(instance=name, outcome="predicted", prediction=prediction, in_flight=in_flight)


def recorded(order: Sequence[Target], answers: Answers) -> list[Candidate]:
    """The candidates for the decision, best first; of many, the best."""
    return [
        answers.candidates.get(target.instance)
        or Candidate(instance=target.instance, outcome="not_probed", in_flight=target.in_flight)
        for target in order[:CANDIDATES_RECORDED_MAX]
    ]
