"""A ledger moved on to now: the steps that the engine has taken since it was published.

A worker publishes at every arrival and end and each 200 ms besides; what happens in between is
deduced here, by the engine's own rules and the step time as learnt. While somebody prefills or
may be admitted, that is done step by step: prefills advance by chunks within the token budget, as
the engine's do. Once all decode, k steps at once, with n requests and S tokens of context, take

    k·(base + max(flat, token·n) + context·S + sequence·n) + context·n·k(k-1)/2

and the largest k that fits is the answer.

What nobody can know yet is not guessed. No estimate ends a request here; and where one has to end,
at the last token that it may have, time stops: an end is published within 20 ms. It stops as well
where blocks would run out: nobody is preempted by guess. So the result is the engine's state of
now, or of a moment between the ledger's and now, as far as the step time holds.
"""

from bisect import bisect_right
from collections.abc import Sequence as SequenceOf
from math import sqrt

from msgspec.structs import replace

from pipeline.messages import Admission, EngineLimits, RequestState, StepTime
from predictor.queues import resolve, tokens_in_all
from predictor.rules import restored
from predictor.rules.sglang_admission import NewTokenRatio
from predictor.scheduler import Scheduler, Sequence
from predictor.step_time import StepLoad, step_ms

STEPS_MAX = 64
"""Taken one by one; of steps in which all decode, any number costs the same."""
STEPS_LARGEST = 1_000_000


def advanced(
    limits: EngineLimits,
    step_time: StepTime,
    requests: SequenceOf[RequestState],
    elapsed_ms: float,
    admission: Admission | None = None,
) -> tuple[list[RequestState], Admission | None]:
    """The requests as they are `elapsed_ms` later, those running first, in the queues' order; and
    what admission goes by then, if it was given.

    All keys stay, whole steps only. Raises UnknownRulesError.
    """
    running = sum(state.phase in ("decoding", "prefilling") for state in requests)
    may_come = max(0, limits.max_num_seqs - running)
    present = list(requests)
    if any(map(_moves_alone, requests)) or (may_come and running < len(requests)):
        present, admission, elapsed_ms = _stepped(
            limits, step_time, present, may_come, elapsed_ms, admission
        )
    steps = _decode_steps(limits, step_time, present, elapsed_ms)
    if not steps:
        return present, admission
    grown = [_grown(state, steps) if state.phase == "decoding" else state for state in present]
    return grown, admission and _decayed(limits, admission, steps)


def _moves_alone(state: RequestState) -> bool:
    """It prefills; or its counts do not add up, which the rules take for a prefill."""
    return state.phase == "prefilling" or (state.phase == "decoding" and not _decodes(state))


def _decodes(state: RequestState) -> bool:
    whole = state.prompt_tokens + state.generated_tokens
    return state.generated_tokens > 0 and state.computed_tokens == whole - 1


# ------------------------------------------------------------------ step by step


def _stepped(
    limits: EngineLimits,
    step_time: StepTime,
    requests: list[RequestState],
    may_come: int,
    elapsed_ms: float,
    admission: Admission | None,
) -> tuple[list[RequestState], Admission | None, float]:
    """On until all decode and nobody waits who may come; and the time that is left then, 0 where
    it was not reached. Of those that wait only the first `may_come` are looked at."""
    running = [state for state in requests if state.phase in ("decoding", "prefilling")]
    waiting = [state for state in requests if state.phase in ("waiting", "preempted")]
    queues = resolve(
        limits, [*running, *waiting[:may_come]], expected=_to_the_end, admission=admission
    )
    scheduler = restored(limits, queues)
    left_ms = elapsed_ms
    for _ in range(STEPS_MAX):
        if not scheduler.waiting and all(sequence.decoding for sequence in scheduler.running):
            return _as_states(scheduler, requests), scheduler.admission, left_ms
        if _end_is_due(scheduler) or _blocks_may_run_out(scheduler):
            break
        plan = scheduler.step()
        left_ms -= step_ms(step_time, plan.load)
        if left_ms < 0 or not plan.chunks:
            break  # it is under way still: whom it admits prefills, with nothing computed
        scheduler.complete(plan)
    return _as_states(scheduler, requests), scheduler.admission, 0.0


def _to_the_end(_generated: int, _p10: float, _p50: float, _p90: float, tokens_max: int) -> int:
    """A length function by which nobody ends before it must."""
    return tokens_max


def _end_is_due(scheduler: Scheduler) -> bool:
    """Of somebody who runs, or whose only token comes with its prefill."""
    present = (*scheduler.running, *scheduler.waiting)
    return any(sequence.generated + 1 >= sequence.target_tokens for sequence in present)


def _blocks_may_run_out(scheduler: Scheduler) -> bool:
    """In the next step, were everything computed that running requests lack."""
    limits = scheduler.limits
    size = limits.block_size
    lacking = sum(
        _blocks(s.prompt_tokens + s.generated, size) - s.blocks for s in scheduler.running
    )
    return lacking > scheduler.blocks_free - _blocks_spare(limits)


def _as_states(scheduler: Scheduler, requests: list[RequestState]) -> list[RequestState]:
    """In the scheduler's order; behind them whoever was not looked at, as before."""
    before = {state.key: state for state in reversed(requests)}
    moved = [_moved(before.pop(sequence.key), sequence) for sequence in scheduler.running]
    moved += [before.pop(sequence.key) for sequence in scheduler.waiting]
    return moved + [state for state in requests if before.pop(state.key, None) is not None]


def _moved(state: RequestState, sequence: Sequence) -> RequestState:
    return replace(
        state,
        phase="decoding" if sequence.decoding else "prefilling",
        computed_tokens=sequence.computed,
        generated_tokens=sequence.generated,
    )


# ------------------------------------------------------------------ decoding alone


def _decode_steps(
    limits: EngineLimits, step_time: StepTime, requests: list[RequestState], elapsed_ms: float
) -> int:
    """How many fit into the time and into the blocks, before somebody has to end."""
    decoding = [state for state in requests if state.phase == "decoding"]
    if not decoding or len(decoding) > limits.max_num_batched_tokens or elapsed_ms <= 0:
        return 0
    in_all = tokens_in_all(limits)
    to_an_end = min(
        min(state.max_tokens, in_all - state.prompt_tokens) - state.generated_tokens
        for state in decoding
    )
    steps = min(to_an_end - 1, _steps_within(step_time, decoding, elapsed_ms))
    size = limits.block_size
    free = limits.kv_blocks - _blocks_spare(limits)

    def used(k: int) -> int:
        return sum(_blocks(state.computed_tokens + k, size) for state in decoding)

    if steps > 0 and used(steps) > free:
        steps = bisect_right(range(steps), free, key=used) - 1
    return max(0, steps)


def _decayed(limits: EngineLimits, admission: Admission, steps: int) -> Admission:
    ratio = NewTokenRatio(limits)
    ratio.set(admission.new_token_ratio)
    ratio.decay(steps)
    return replace(admission, new_token_ratio=ratio.now)


def _steps_within(
    step_time: StepTime, decoding: SequenceOf[RequestState], elapsed_ms: float
) -> int:
    """The positive root of the formula above, rounded down."""
    count = len(decoding)
    context_tokens = sum(state.computed_tokens for state in decoding)
    first_ms = step_ms(step_time, StepLoad(count, 0.0, context_tokens, count))
    half_growth_ms = step_time.context_ms * count / 2
    linear_ms = first_ms - half_growth_ms
    root_ms = sqrt(linear_ms * linear_ms + 4 * half_growth_ms * elapsed_ms)
    return int(min(STEPS_LARGEST, 2 * elapsed_ms / (linear_ms + root_ms)))


def _grown(state: RequestState, tokens: int) -> RequestState:
    return replace(
        state,
        computed_tokens=state.computed_tokens + tokens,
        generated_tokens=state.generated_tokens + tokens,
    )


def _blocks(tokens: int, size: int) -> int:
    return -(-tokens // size)


def _blocks_spare(limits: EngineLimits) -> int:
    """vLLM V0 lets nobody go on without a free block."""
    return 1 if limits.rules == "vllm-v0" else 0
