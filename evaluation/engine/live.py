"""Requests placed on two real instances by this process, with what their predictors said before.

It takes the dispatcher's part, so that it can do what no dispatcher does: run every few requests
on both instances, and see which place was the better.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import msgspec

from evaluation.engine.judge import Pair, Run, Times
from pipeline.bus import Bus, Message
from pipeline.codec import decode, encode
from pipeline.conclusion import find_result
from pipeline.errors import AstrolabeError
from pipeline.fleet import Fleet
from pipeline.messages import (
    Candidate,
    Decision,
    DispatchedRequest,
    Instance,
    LengthEstimate,
    Prediction,
    Request,
    Result,
    TaggedRequest,
    Trace,
    wall_ms,
)
from pipeline.policies import Target
from pipeline.probing import Answers, ask, probe_for
from pipeline.queued import queued_headers

INSTANCES = 2
PROBE_TIMEOUT_S = 0.5
"""Longer than a dispatcher's: here a late answer is still an answer, on a machine with little."""
RESULT_WITHIN_S = 120.0
LOOK_EVERY_S = 0.05
DEADLINE_MS = 10 * 60 * 1000.0


class NotAnswered(AstrolabeError):
    """A request did not end well, so there is nothing to compare."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a run."""

    at_s: float
    """From its wave's start."""
    prompt: str
    prompt_tokens: int
    tokens: int
    on_both: bool


@dataclass(slots=True)
class Happened:
    """All that came of a run."""

    runs: list[Run] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    unanswered_probes: int = 0


@dataclass(slots=True, eq=False)
class _Placed:
    """A request on its instance."""

    instance: str
    disturbed: bool = False


class Placer:
    """Places requests on the instances that it hears of."""

    def __init__(self, bus: Bus, seed: int) -> None:
        self._bus = bus
        self._fleet = Fleet()
        self._rng = Random(seed)
        self._happened = Happened()
        self._placed: set[_Placed] = set()

    async def listen(self, within_s: float = 10.0) -> None:
        """Until both instances were heard. Raises TimeoutError."""

        def heard(message: Message) -> None:
            self._fleet.heard(decode(message.data, Instance))

        await self._bus.subscribe(self._bus.subjects.all_heartbeats, heard)
        async with asyncio.timeout(within_s):
            while len(self._fleet.targets("default")) < INSTANCES:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_EVERY_S)

    async def run(self, name: str, waves: Sequence[Sequence[Asked]]) -> Happened:
        """One wave after the other, each to the end of its last request."""
        self._happened = Happened()
        loop = asyncio.get_running_loop()
        for wave, requests in enumerate(waves):
            started = loop.time()
            async with asyncio.TaskGroup() as tasks:
                for number, asked in enumerate(requests):
                    await asyncio.sleep(max(0.0, started + asked.at_s - loop.time()))
                    tasks.create_task(self._one(f"{name}-{wave}-{number}", asked))
        return self._happened

    async def _one(self, name: str, asked: Asked) -> None:
        tagged = _tagged(name, asked)
        targets = self._fleet.targets("default")
        probe = probe_for(tagged, "prediction")
        answers = await ask(self._bus, self._fleet, probe, targets, PROBE_TIMEOUT_S)
        if len(answers.predictions) < INSTANCES:
            self._happened.unanswered_probes += 1
            return
        chosen = [self._better(targets, answers)]
        if asked.on_both:
            chosen += [target for target in targets if target is not chosen[0]]
        placed_at_ms = wall_ms()
        runs = await asyncio.gather(
            *(
                self._on(target, tagged, number, answers, placed_at_ms)
                for number, target in enumerate(chosen)
            )
        )
        self._happened.runs += runs
        if asked.on_both:
            first, second = runs
            self._happened.pairs.append(Pair(first, second))

    def _better(self, targets: Sequence[Target], answers: Answers) -> Target:
        shuffled = self._rng.sample(list(targets), len(targets))
        return min(shuffled, key=lambda target: answers.predictions[target.instance].cost)

    async def _on(
        self, target: Target, tagged: TaggedRequest, number: int, answers: Answers, at_ms: float
    ) -> Run:
        mine = msgspec.structs.replace(tagged, id=f"{tagged.id}-{number}")
        prediction = answers.predictions[target.instance]
        for other in self._placed:
            other.disturbed |= other.instance == target.instance
        placed = _Placed(target.instance)
        self._placed.add(placed)
        try:
            await self._store(target, mine, prediction)
            result = await self._result(mine)
        finally:
            self._placed.discard(placed)
        trace = result.trace
        if result.status != "done" or trace.first_token_at_ms is None or not trace.finished_at_ms:
            raise NotAnswered(f"{mine.id}: {result.error or result.status}")
        actual = Times(trace.first_token_at_ms - at_ms, trace.finished_at_ms - at_ms)
        predicted = Times(prediction.ttft_ms, prediction.e2e_ms)
        return Run(predicted, actual, result.preemptions, placed.disturbed)

    async def _store(self, target: Target, tagged: TaggedRequest, prediction: Prediction) -> None:
        candidate = Candidate(instance=target.instance, outcome="predicted", prediction=prediction)
        decision = Decision(policy="evaluation", reason="cost", candidates=[candidate])
        await self._bus.jetstream.store(
            self._bus.subjects.inbox(target.instance, target.boot),
            encode(
                DispatchedRequest(
                    **msgspec.structs.asdict(tagged),
                    instance=target.instance,
                    boot=target.boot,
                    decision=decision,
                )
            ),
            message_id=f"{tagged.key}.1",
            headers=queued_headers(tagged),
        )

    async def _result(self, tagged: TaggedRequest) -> Result:
        async with asyncio.timeout(RESULT_WITHIN_S):
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                result = await find_result(self._bus, tagged.client, tagged.id)
                if result is not None:
                    return result


def _tagged(name: str, asked: Asked) -> TaggedRequest:
    """As a tagger would, but that the length is known."""
    request = Request(
        id=name, prompt=asked.prompt, max_tokens=asked.tokens, ignore_eos=True, stream=False
    )
    tokens = float(asked.tokens)
    return TaggedRequest(
        id=name,
        client="evaluation",
        model="default",
        request=msgspec.Raw(encode(request)),
        prompt_tokens=asked.prompt_tokens,
        max_tokens=asked.tokens,
        estimate=LengthEstimate(p10=tokens, p50=tokens, p90=tokens, source="ignore_eos"),
        deadline_at_ms=wall_ms() + DEADLINE_MS,
        trace=Trace(),
    )
