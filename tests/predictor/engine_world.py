"""A simulated engine in virtual time, under ShareGPT-like load: what it really takes, unknown to
whoever predicts."""

import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass

from pipeline.messages import EngineLimits, LengthEstimate, Phase, Probe, RequestState
from predictor.scheduler import Scheduler, Sequence
from predictor.step_time import StepLoad

ANSWER_MEDIAN, ANSWER_SIGMA = 286.0, 0.7
PROMPT_MEDIAN, PROMPT_SIGMA = 60.0, 1.5
LONGEST = 1_500
"""Medians and widths are those of notes on the paper's workload, roughly."""


@dataclass(frozen=True, slots=True)
class Step:
    load: StepLoad
    duration_ms: float


class EngineWorld:
    """Poisson arrivals into one scheduler whose steps take what `next_ms` says."""

    def __init__(
        self,
        limits: EngineLimits,
        next_ms: Callable[[StepLoad], float],
        *,
        qps: float,
        seed: int = 0,
    ) -> None:
        self.scheduler = Scheduler(limits)
        self.now_ms = 0.0
        self.entered_ms: dict[str, float] = {}
        self.finished_ms: dict[str, float] = {}
        self._next_ms = next_ms
        self._qps = qps
        self._rng = random.Random(seed)
        self._due_ms = 0.0

    def steps(self, count: int) -> Iterator[Step]:
        """So many more of them, each after whoever is due has come; idle time is skipped."""
        for _ in range(count):
            self.arrive()
            if not len(self.scheduler):
                self.now_ms = self._due_ms
                self.arrive()
            yield self._step()

    def arrive(self) -> Sequence | None:
        """Let in whoever is due; the last of them."""
        newest = None
        while self._due_ms <= self.now_ms:
            rng = self._rng
            prompt = min(LONGEST, 1 + round(PROMPT_MEDIAN * rng.lognormvariate(0, PROMPT_SIGMA)))
            answer = min(LONGEST, 1 + round(ANSWER_MEDIAN * rng.lognormvariate(0, ANSWER_SIGMA)))
            newest = Sequence(f"r{len(self.entered_ms)}", prompt, answer, tokens_max=answer)
            self.scheduler.add(newest)
            self.entered_ms[newest.key] = self.now_ms
            self._due_ms += rng.expovariate(self._qps) * 1000
        return newest

    def undisturbed_ms(self, key: str) -> float:
        """How long a request that is here would take if nobody came any more. Only looks."""
        alone = deepcopy(self.scheduler)
        elapsed_ms = 0.0
        while True:
            plan = alone.step()
            elapsed_ms += self._next_ms(plan.load)
            if any(grown.key == key and ended for grown, ended in alone.complete(plan)):
                return elapsed_ms

    def states(self, *, without: str) -> list[RequestState]:
        """The ledger, with true lengths for estimates."""
        scheduler = self.scheduler
        running = [_state(s, "decoding" if s.decoding else "prefilling") for s in scheduler.running]
        waiting = [
            _state(s, "preempted" if s.preemptions else "waiting") for s in scheduler.waiting
        ]
        return [state for state in running + waiting if state.key != without]

    def _step(self) -> Step:
        plan = self.scheduler.step()
        duration_ms = self._next_ms(plan.load)
        self.now_ms += duration_ms
        for sequence, ended in self.scheduler.complete(plan):
            if ended:
                self.finished_ms[sequence.key] = self.now_ms
        return Step(plan.load, duration_ms)


def probe_for(sequence: Sequence) -> Probe:
    """That asks about it, its true length known."""
    length = float(sequence.target_tokens)
    return Probe(
        key=sequence.key,
        prompt_tokens=sequence.prompt_tokens,
        max_tokens=sequence.target_tokens,
        estimate=LengthEstimate(p10=length, p50=length, p90=length, source="truth"),
    )


def _state(sequence: Sequence, phase: Phase) -> RequestState:
    length = float(sequence.target_tokens)
    return RequestState(
        key=sequence.key,
        phase=phase,
        prompt_tokens=sequence.prompt_tokens,
        computed_tokens=sequence.computed,
        generated_tokens=sequence.generated,
        max_tokens=sequence.target_tokens,
        p10=length,
        p50=length,
        p90=length,
    )
