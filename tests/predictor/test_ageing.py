"""A ledger moved on, against the scheduler that it was read from: noise-free, step time known."""

from collections import Counter
from statistics import fmean

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline.messages import Admission, EngineLimits, Phase, RequestState, StepTime
from predictor.ageing import STEPS_MAX, advanced
from predictor.fast import simulate_fast
from predictor.rules import step_by_step
from predictor.scheduler import Scheduler, Sequence
from predictor.step_time import DEFAULT_PROFILE, LIMITS, PROFILES, step_ms
from tests.predictor.engine_world import EngineWorld
from tests.predictor.worlds import STEP_TIME, probe
from tests.predictor.worlds import limits as any_limits
from tests.predictor.worlds import requests as any_requests

ROOMY = EngineLimits(
    rules="vllm",
    block_size=4,
    kv_blocks=2_000,
    max_num_seqs=8,
    max_num_batched_tokens=16,
    max_model_len=1_000,
)
TOKENS_MAX = 400


def later(
    limits: EngineLimits,
    step_time: StepTime,
    states: list[RequestState],
    elapsed_ms: float,
    admission: Admission | None = None,
) -> list[RequestState]:
    """The requests alone."""
    return advanced(limits, step_time, states, elapsed_ms, admission)[0]


class Engine:
    """A scheduler that runs in virtual time, and the ledger that its worker would publish. Who
    ends before it must is told by the next ledger: here nobody does."""

    def __init__(self, limits: EngineLimits, prompts: list[int], targets: list[int]) -> None:
        self.scheduler: Scheduler = step_by_step(limits)
        for number, (prompt, target) in enumerate(zip(prompts, targets, strict=True)):
            target = min(target, self.scheduler.room(prompt))
            if target >= 1:
                self.scheduler.add(Sequence(f"r{number}", prompt, target, tokens_max=target))
        self.now_ms = 0.0
        self.eventful = False
        """Somebody ended or was preempted, in what was run last."""

    def step(self) -> float:
        """Its duration."""
        plan = self.scheduler.step()
        duration_ms = step_ms(STEP_TIME, plan.load)
        self.now_ms += duration_ms
        ended = any(last for _, last in self.scheduler.complete(plan))
        self.eventful = self.eventful or ended or bool(plan.preempted)
        return duration_ms

    def states(self) -> list[RequestState]:
        running = [
            self._state(s, "decoding" if s.decoding else "prefilling")
            for s in self.scheduler.running
        ]
        waiting = [
            self._state(s, "preempted" if s.preemptions else "waiting")
            for s in self.scheduler.waiting
        ]
        return running + waiting

    def _state(self, s: Sequence, phase: Phase) -> RequestState:
        return RequestState(
            s.key, phase, s.prompt_tokens, s.computed, s.generated, s.tokens_max, 1, 50, 400
        )


def counts(states: list[RequestState]) -> dict[str, tuple[int, int]]:
    return {state.key: (state.computed_tokens, state.generated_tokens) for state in states}


@st.composite
def engines(draw: st.DrawFn) -> Engine:
    """Anywhere in the life of some requests."""
    limits = draw(any_limits(draw(st.sampled_from(["vllm", "vllm-v0", "sglang"]))))
    count = draw(st.integers(1, 8))
    prompts = draw(st.lists(st.integers(1, 40), min_size=count, max_size=count))
    targets = draw(st.lists(st.integers(1, 60), min_size=count, max_size=count))
    engine = Engine(limits, prompts, targets)
    for _ in range(draw(st.integers(0, 60))):
        if len(engine.scheduler):
            engine.step()
    return engine


@given(
    prompts=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    steps=st.integers(0, 300),
    elapsed_ms=st.floats(0, 1_000),
)
def test_an_engine_that_only_decodes_is_followed_to_within_a_step(
    prompts: list[int], steps: int, elapsed_ms: float
) -> None:
    engine = Engine(ROOMY, prompts, [TOKENS_MAX] * len(prompts))
    while any(state.phase != "decoding" for state in engine.states()):
        engine.step()
    for _ in range(steps):
        engine.step()
    before = engine.states()
    moved = later(ROOMY, STEP_TIME, before, elapsed_ms)
    most = min(TOKENS_MAX - 1 - state.generated_tokens for state in before)
    until_ms = engine.now_ms + elapsed_ms
    taken = 0
    while taken < most and engine.now_ms <= until_ms:
        engine.step()
        taken += 1
    truth = counts(engine.states())
    for state in moved:
        computed, generated = truth[state.key]
        assert generated - 1 <= state.generated_tokens <= generated
        assert computed - 1 <= state.computed_tokens <= computed


@given(engine=engines(), elapsed_ms=st.floats(0, 300))
def test_as_long_as_nobody_ends_it_is_the_engines_own_state_or_an_earlier_one(
    engine: Engine, elapsed_ms: float
) -> None:
    """Prefills, admissions and all, by both sets of rules; so it is never worse than before."""
    limits = engine.scheduler.limits
    before = engine.states()
    moved = counts(later(limits, STEP_TIME, before, elapsed_ms, engine.scheduler.admission))
    assert moved.keys() == counts(before).keys()
    passed = [counts(before)]
    engine.eventful = False
    until_ms = engine.now_ms + elapsed_ms
    while len(engine.scheduler) and not engine.eventful:
        if engine.now_ms > until_ms:
            break
        engine.step()
        passed.append(counts(engine.states()))
    if engine.eventful:  # who ended, or was set back, is not guessed
        passed.pop()
    assert any(moved == then for then in passed)


@given(engine=engines(), elapsed_ms=st.floats(0, 300))
def test_with_room_for_all_it_is_the_state_at_that_very_time(
    engine: Engine, elapsed_ms: float
) -> None:
    limits = engine.scheduler.limits
    before = engine.states()
    goes_by = engine.scheduler.admission
    moved, admission = advanced(limits, STEP_TIME, before, elapsed_ms, goes_by)
    engine.eventful = False
    until_ms, taken = engine.now_ms + elapsed_ms, 0
    truth = counts(before)
    while len(engine.scheduler) and engine.now_ms <= until_ms:
        truth, goes_by = counts(engine.states()), engine.scheduler.admission
        engine.step()
        taken += 1
    blocks = sum(-(-(s.prompt_tokens + s.max_tokens) // limits.block_size) for s in before)
    tight = blocks + 1 > limits.kv_blocks or len(before) > limits.max_num_batched_tokens
    # Time stops for whoever has one token to go, though it may have to wait for that.
    last = any(state.generated_tokens + 1 >= state.max_tokens for state in before)
    assume(not (engine.eventful or tight or last or taken > STEPS_MAX))
    assert counts(moved) == truth
    if goes_by is not None and before:
        assert admission is not None
        assert admission.new_token_ratio == pytest.approx(goes_by.new_token_ratio)


def test_who_waits_is_let_in_and_prefilled_by_chunks() -> None:
    engine = Engine(ROOMY, [3, 40], [TOKENS_MAX] * 2)
    before = engine.states()
    assert [state.phase for state in before] == ["waiting", "waiting"]
    phases, elapsed_ms = [], 0.0
    for _ in range(4):
        elapsed_ms += engine.step()
        moved = later(ROOMY, STEP_TIME, before, elapsed_ms + 1e-6)
        assert counts(moved) == counts(engine.states())
        phases.append([state.phase for state in moved])
    assert phases == [["decoding", "prefilling"]] * 2 + [["decoding", "decoding"]] * 2


def test_nobody_is_let_in_while_the_batch_is_full() -> None:
    limits = msgspec.structs.replace(ROOMY, max_num_seqs=2)
    engine = Engine(limits, [3, 4, 5], [TOKENS_MAX] * 3)
    for _ in range(3):
        engine.step()
    moved = later(limits, STEP_TIME, engine.states(), 100.0)
    assert Counter(state.phase for state in moved) == {"decoding": 2, "waiting": 1}
    assert moved[0].generated_tokens > 10


def test_nobody_reaches_the_last_token_that_it_may_have() -> None:
    state = RequestState("r", "decoding", 10, 12, 3, 20, 5, 6, 7)
    (moved,) = later(ROOMY, STEP_TIME, [state], 1e6)
    assert (moved.generated_tokens, moved.computed_tokens) == (19, 28)
    # Nor does anybody else go on beyond that moment: the batch is another then.
    other = RequestState("s", "decoding", 10, 12, 3, 500, 5, 6, 7)
    moved_on = later(ROOMY, STEP_TIME, [other, state], 1e6)
    assert [moved.generated_tokens for moved in moved_on] == [19, 19]
    # The model's room is a limit like it.
    state = RequestState("r", "decoding", 900, 902, 3, 10_000, 5, 6, 7)
    (moved,) = later(ROOMY, STEP_TIME, [state], 1e6)
    assert moved.generated_tokens == 99
    # One that must have ended stands still, and everybody with it.
    state = RequestState("r", "decoding", 10, 29, 20, 20, 5, 6, 7)
    assert later(ROOMY, STEP_TIME, [state, other], 1e6) == [state, other]


def test_time_stops_where_blocks_would_run_out() -> None:
    limits = msgspec.structs.replace(ROOMY, kv_blocks=10)
    states = [RequestState(f"r{n}", "decoding", 10, 12, 3, 500, 5, 6, 7) for n in range(2)]
    moved = later(limits, STEP_TIME, states, 1e6)
    assert [state.computed_tokens for state in moved] == [20, 20]
    # A ledger that has more blocks than there are does not add up: it stays as it is.
    limits = msgspec.structs.replace(ROOMY, kv_blocks=5)
    assert later(limits, STEP_TIME, states, 1e6) == states


def test_less_than_a_step_changes_nothing() -> None:
    states = [RequestState("r", "decoding", 10, 12, 3, 500, 5, 6, 7)]
    assert later(ROOMY, STEP_TIME, states, 2.0) == states
    assert later(ROOMY, STEP_TIME, [], 1e3) == []


@given(
    limits=any_limits(),
    states=any_requests(),
    elapsed_ms=st.floats(0, 1e7),
    context_ms=st.sampled_from([0.0, 0.00457, 50.0]),
    base_ms=st.sampled_from([5e-324, 1.0, 1e5]),
)
def test_whatever_the_ledger_says_nobody_is_lost_or_set_back(
    limits: EngineLimits,
    states: list[RequestState],
    elapsed_ms: float,
    context_ms: float,
    base_ms: float,
) -> None:
    step_time = StepTime(
        base_ms=base_ms,
        flat_ms=0.0,
        token_ms=0.0,
        prefill_ms=0.0,
        context_ms=context_ms,
        sequence_ms=0.0,
    )
    moved = later(limits, step_time, states, elapsed_ms)
    before = {state.key: state for state in states}
    assert len(moved) == len(before)
    for state in moved:
        was = before[state.key]
        assert state.generated_tokens >= was.generated_tokens
        assert state.generated_tokens <= max(was.generated_tokens, was.max_tokens - 1)


@pytest.mark.parametrize("count", [0, 1])
def test_a_key_that_is_there_twice_counts_once(count: int) -> None:
    twice = [RequestState("r", "prefilling", 10, 0, 0, 500, 5, 6, 7)] * 2
    assert len(later(ROOMY, STEP_TIME, twice, count * 100.0)) == 1


def test_predictions_from_a_ledger_that_was_moved_on_are_nearer_to_those_from_the_truth() -> None:
    """Ledgers of 100 to 200 ms, the engine and its load as published. "Nearer" is by half."""
    limits, step_time = LIMITS[DEFAULT_PROFILE], PROFILES[DEFAULT_PROFILE]
    world = EngineWorld(limits, lambda load: step_ms(step_time, load), qps=1.2, seed=1)
    asked = probe(60, 286)

    def e2e_ms(requests: list[RequestState]) -> float:
        return simulate_fast(limits, step_time, requests, asked).e2e_ms

    off_before, off_moved = [], []
    published_ms, published, seen = 0.0, world.states(without=""), (0, 0)
    for _ in world.steps(1_500):
        ends_and_arrivals = len(world.entered_ms), len(world.finished_ms)
        age_ms = world.now_ms - published_ms
        if ends_and_arrivals != seen or age_ms >= 200:
            published_ms, published = world.now_ms, world.states(without="")
            seen = ends_and_arrivals
        elif age_ms >= 100:
            truth_ms = e2e_ms(world.states(without=""))
            moved = later(limits, step_time, published, 100.0)
            off_before.append(abs(e2e_ms(published) - truth_ms))
            off_moved.append(abs(e2e_ms(moved) - truth_ms))
    assert len(off_moved) > 200
    assert fmean(off_moved) < fmean(off_before) / 2
