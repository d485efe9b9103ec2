"""What would happen to a newcomer: the instance's own scheduler, run forward from its state.

Step by step and plain: the reference that any faster way has to agree with. It knows lengths only
as estimates, and the engine's speed only as the coefficients that it is given.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from math import ceil

from pipeline.errors import PromptTooLong
from pipeline.messages import EngineLimits, Probe, RequestState, StepTime
from predictor.scheduler import Scheduler, Sequence, room
from predictor.step_time import step_ms

STEPS_MAX = 1_000
"""Some 20 ms of Python at 48 running requests: an answer after the probe's timeout is none."""
OUTLIVED_GROWTH = 0.5
"""A request past its p90 is expected to go on by this share of what it has generated. The tail of
answer lengths is heavy: the longer one has gone on, the more is still to come."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the newcomer would experience. Times are ms from now."""

    ttft_ms: float
    e2e_ms: float
    tpot_ms: float
    """Mean time between its tokens after the first; 0 for an answer of one token."""
    preemptions: int
    """Of any request, within the simulated steps."""
    kv_blocks_peak: int
    steps: int
    """Really simulated."""
    extrapolated: bool = False
    """`steps_max` came first; e2e_ms, and ttft_ms if there was no token yet, go on from the mean
    step until then."""
    finish_ms: dict[str, float] = field(default_factory=dict)
    """By key: the newcomer, and those that finish before it."""


def simulate(
    limits: EngineLimits,
    step_time: StepTime,
    requests: SequenceOf[RequestState],
    newcomer: Probe,
    *,
    steps_max: int = STEPS_MAX,
) -> Forecast:
    """Run the engine in this state with the newcomer behind everybody, until it has finished.

    `requests` are in the order of the engine's queues. Raises PromptTooLong.
    """
    if steps_max < 1:
        raise ValueError("steps_max must be at least 1")
    scheduler = _restored(limits, requests, without=newcomer.key)
    ahead = [*scheduler.running, *scheduler.waiting]
    sequence = _asked(limits, newcomer)
    scheduler.add(sequence)

    elapsed_ms = 0.0
    ttft_ms: float | None = None
    finish_ms: dict[str, float] = {}
    peak = steps = produced = 0
    while sequence.generated < sequence.target_tokens and steps < steps_max:
        plan = scheduler.step()
        steps += 1
        elapsed_ms += step_ms(step_time, plan.load)
        peak = max(peak, scheduler.blocks_used)
        grown = scheduler.complete(plan)
        produced += len(grown)
        for other, finished in grown:
            if finished:
                finish_ms[other.key] = elapsed_ms
        if ttft_ms is None and sequence.generated:
            ttft_ms = elapsed_ms

    mean_ms = elapsed_ms / steps
    if ttft_ms is None:
        # Still in the queue. Everybody ahead is taken to finish first, at the speed until now.
        owed = sum(other.target_tokens - other.generated for other in ahead)
        ttft_ms = elapsed_ms + mean_ms * owed / max(1.0, produced / steps)
        e2e_ms = ttft_ms + mean_ms * (sequence.target_tokens - 1)
    else:
        e2e_ms = elapsed_ms + mean_ms * (sequence.target_tokens - sequence.generated)
    return Forecast(
        ttft_ms=ttft_ms,
        e2e_ms=e2e_ms,
        tpot_ms=(e2e_ms - ttft_ms) / max(1, sequence.target_tokens - 1),
        preemptions=scheduler.preemptions,
        kv_blocks_peak=peak,
        steps=steps,
        extrapolated=sequence.generated < sequence.target_tokens,
        finish_ms={**finish_ms, sequence.key: e2e_ms},
    )


def expected_total(generated: int, p50: float, p90: float, tokens_max: int) -> int:
    """Tokens that an answer will have had in all, given how many there are already: at least one
    more, at most `tokens_max`."""
    if p50 > generated:
        expected = p50
    elif p90 > generated:
        expected = p90
    else:
        expected = generated * (1 + OUTLIVED_GROWTH)
    return min(max(generated + 1, ceil(min(expected, tokens_max))), tokens_max)


def _asked(limits: EngineLimits, probe: Probe) -> Sequence:
    prompt_tokens = max(1, probe.prompt_tokens)
    room_tokens = room(limits, prompt_tokens)
    if room_tokens < 1:
        raise PromptTooLong(
            f"a prompt of {prompt_tokens} tokens leaves no room for an answer",
            field="prompt",
            limit=prompt_tokens + room_tokens - 1,
        )
    tokens_max = min(probe.max_tokens or room_tokens, room_tokens)
    return Sequence(
        key=probe.key,
        prompt_tokens=prompt_tokens,
        target_tokens=expected_total(0, probe.estimate.p50, probe.estimate.p90, tokens_max),
        priority=probe.priority,
    )


def _restored(
    limits: EngineLimits, requests: SequenceOf[RequestState], *, without: str
) -> Scheduler:
    """The engine's queues as the ledger shows them."""
    scheduler = Scheduler(limits)
    for state in requests:
        if state.key == without or state.key in scheduler:
            continue
        sequence = _held(limits, state)
        if sequence is None:
            continue
        if state.phase in ("prefilling", "decoding"):
            scheduler.restore(sequence)
        else:
            sequence.computed = 0
            scheduler.add(sequence)
    return scheduler


def _held(limits: EngineLimits, state: RequestState) -> Sequence | None:
    """A request of the ledger; None for one that has no token left to generate: it is finished
    or refused, and only the ledger does not know yet."""
    prompt_tokens = max(1, state.prompt_tokens)
    generated = state.generated_tokens
    tokens_max = min(state.max_tokens, room(limits, prompt_tokens))
    if generated >= tokens_max:
        return None
    # What is published is a moment old, and inferred for some engines: it need not add up.
    computed = max(0, min(state.computed_tokens, prompt_tokens + generated - 1))
    return Sequence(
        key=state.key,
        prompt_tokens=prompt_tokens,
        target_tokens=expected_total(generated, state.p50, state.p90, tokens_max),
        computed=computed,
        generated=generated,
        priority=state.priority,
    )
