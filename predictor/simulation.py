"""What would happen to a newcomer: the instance's own scheduler, run forward from its state.

Step by step and plain: the reference that predictor/fast.py has to agree with. It knows lengths
only as estimates, and the engine's speed only as the coefficients that it is given.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from pipeline.messages import Admission, EngineLimits, Probe, RequestState, StepTime
from predictor.forecast import Base, Forecast, Horizon
from predictor.lengths import expected_total
from predictor.queues import ExpectedTotal, newcomer, resolve
from predictor.rules import restored
from predictor.scheduler import Scheduler, Sequence
from predictor.step_time import step_ms

STEPS_MAX = 1_000
"""Some 20 ms of Python at 48 running requests: an answer after the probe's timeout is none."""


@dataclass(slots=True)
class _Run:
    """One engine on its way."""

    scheduler: Scheduler
    step_time: StepTime
    elapsed_ms: float = 0.0
    steps: int = 0
    produced: int = 0
    blocks_peak: int = 0
    finish_ms: dict[str, float] = field(default_factory=dict)

    def step(self) -> None:
        scheduler = self.scheduler
        plan = scheduler.step()
        self.steps += 1
        self.elapsed_ms += step_ms(self.step_time, plan.load)
        self.blocks_peak = max(self.blocks_peak, scheduler.blocks_used)
        grown = scheduler.complete(plan)
        self.produced += len(grown)
        for sequence, finished in grown:
            if finished:
                self.finish_ms[sequence.key] = self.elapsed_ms

    def drain(self, steps_max: int) -> bool:
        """On until nobody is left; False if the bound came first."""
        while len(self.scheduler) and self.steps < steps_max:
            self.step()
        return not len(self.scheduler)


def simulate(
    limits: EngineLimits,
    step_time: StepTime,
    requests: SequenceOf[RequestState],
    probe: Probe,
    *,
    steps_max: int = STEPS_MAX,
    horizon: Horizon = "newcomer",
    expected: ExpectedTotal = expected_total,
    admission: Admission | None = None,
) -> Forecast:
    """Run the engine in this state with the newcomer behind everybody, until it has finished.

    `requests` are in the order of the engine's queues. Raises PromptTooLong.
    """
    if steps_max < 1:
        raise ValueError("steps_max must be at least 1")
    asked = newcomer(limits, probe, expected)
    queues = resolve(limits, requests, without=asked.key, expected=expected, admission=admission)
    run = _Run(restored(limits, queues), step_time)
    scheduler = run.scheduler
    ahead = [*scheduler.running, *scheduler.waiting]
    sequence = Sequence(
        asked.key, asked.prompt, asked.target, priority=asked.priority, tokens_max=asked.tokens_max
    )
    scheduler.add(sequence)

    ttft_ms: float | None = None
    while sequence.generated < sequence.target_tokens and run.steps < steps_max:
        run.step()
        if ttft_ms is None and sequence.generated:
            ttft_ms = run.elapsed_ms
    steps, preemptions, blocks_peak = run.steps, scheduler.preemptions, run.blocks_peak
    extrapolated = sequence.generated < sequence.target_tokens

    mean_ms = run.elapsed_ms / steps
    if ttft_ms is None:
        # Still in the queue. Everybody ahead is taken to finish first, at the speed until now.
        owed = sum(other.target_tokens - other.generated for other in ahead)
        ttft_ms = run.elapsed_ms + mean_ms * owed / max(1.0, run.produced / steps)
        e2e_ms = ttft_ms + mean_ms * (sequence.target_tokens - 1)
    else:
        e2e_ms = run.elapsed_ms + mean_ms * (sequence.target_tokens - sequence.generated)
    if horizon == "all" and not run.drain(steps_max):
        extrapolated = True
    return Forecast(
        ttft_ms=ttft_ms,
        e2e_ms=e2e_ms,
        tpot_ms=(e2e_ms - ttft_ms) / max(1, sequence.target_tokens - 1),
        preemptions=preemptions,
        kv_blocks_peak=blocks_peak,
        steps=steps,
        extrapolated=extrapolated,
        finish_ms={**run.finish_ms, sequence.key: e2e_ms},
        preemptions_horizon=scheduler.preemptions,
        kv_blocks_free_min=limits.kv_blocks - blocks_peak,
        never_fits=tuple(queues.never_fits),
        horizon=horizon,
    )


def trajectory(
    limits: EngineLimits,
    step_time: StepTime,
    requests: SequenceOf[RequestState],
    *,
    steps_max: int = STEPS_MAX,
    expected: ExpectedTotal = expected_total,
    admission: Admission | None = None,
) -> Base:
    """Run the engine in this state until everybody present has finished."""
    queues = resolve(limits, requests, expected=expected, admission=admission)
    run = _Run(restored(limits, queues), step_time)
    done = run.drain(steps_max)
    return Base(
        finish_ms=run.finish_ms,
        preemptions=run.scheduler.preemptions,
        kv_blocks_peak=run.blocks_peak,
        steps=run.steps,
        extrapolated=not done,
        never_fits=tuple(queues.never_fits),
    )
