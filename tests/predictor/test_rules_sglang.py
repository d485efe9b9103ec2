"""SGLang's rules, each with a case small enough to follow by hand."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from pipeline.messages import Admission, EngineLimits, Probe, RequestState, StateUpdate
from predictor.fast import Prepared
from predictor.queues import newcomer, tokens_in_all
from predictor.rules import UnknownRulesError, by_events, step_by_step
from predictor.rules.sglang_admission import NewTokenRatio, token_ratios
from predictor.rules.sglang_owed import OwedTokens
from predictor.rules.sglang_steps import SglangScheduler
from predictor.scheduler import NeverFitsError, Sequence, StepPlan
from predictor.service import Oracle
from predictor.simulation import simulate
from predictor.view import InstanceView
from tests.predictor.worlds import STEP_TIME, exactly, probe

LIMITS = EngineLimits(
    rules="sglang",
    block_size=1,
    kv_blocks=100,
    max_num_seqs=8,
    max_num_batched_tokens=16,
    max_model_len=1000,
    new_token_ratio_start=0.5,
    new_token_ratio_min=0.1,
    new_token_ratio_decay_steps=10,
)


def engine(**own: Any) -> SglangScheduler:
    return SglangScheduler(msgspec.structs.replace(LIMITS, **own))


def fresh(key: str, prompt: int, target: int, tokens_max: int | None = None) -> Sequence:
    return Sequence(key, prompt, target, tokens_max=tokens_max or target)


def decoding(
    key: str, prompt: int, generated: int, target: int, tokens_max: int | None = None
) -> Sequence:
    return Sequence(
        key, prompt, target, computed=prompt + generated - 1, generated=generated,
        tokens_max=tokens_max or target,
    )  # fmt: skip


def run_step(scheduler: SglangScheduler) -> list[tuple[str, int]]:
    plan = scheduler.step()
    scheduler.complete(plan)
    return given_to(plan)


def given_to(plan: StepPlan) -> list[tuple[str, int]]:
    return [(sequence.key, chunk) for sequence, chunk in plan.chunks]


def names(sequences: Iterable[Sequence]) -> list[str]:
    return [sequence.key for sequence in sequences]


def ratio_and_full(scheduler: SglangScheduler) -> tuple[float, bool]:
    admission = scheduler.admission
    return round(admission.new_token_ratio, 9), admission.batch_full


# ------------------------------------------------------------------ prefill before decode


def test_a_prefill_batch_comes_first_and_those_that_decode_stand_still() -> None:
    scheduler = engine()
    scheduler.restore(decoding("a", 4, 2, 9))
    scheduler.add(fresh("b", 6, 3))
    plan = scheduler.step()
    assert given_to(plan) == [("b", 6)]
    assert (plan.load.tokens, plan.load.context_tokens, plan.load.sequences) == (6, 0, 1)
    assert plan.load.prefill_work == 6 * 3
    scheduler.complete(plan)
    plan = scheduler.step()
    assert given_to(plan) == [("a", 1), ("b", 1)]
    assert (plan.load.context_tokens, plan.load.prefill_work) == (5 + 6, 0)


def test_one_request_is_cut_and_its_rest_is_first_in_the_next_batch() -> None:
    scheduler = engine()
    for key in ("a", "b", "c"):
        scheduler.add(fresh(key, 10, 3))
    assert run_step(scheduler) == [("a", 10), ("b", 6)]
    assert run_step(scheduler) == [("b", 4), ("c", 10)]
    assert run_step(scheduler) == [("a", 1), ("b", 1), ("c", 1)]


def test_a_chunk_is_whole_pages_and_every_request_is_charged_in_pages() -> None:
    scheduler = engine(block_size=4, kv_blocks=40)
    for key in ("a", "b", "c"):
        scheduler.add(fresh(key, 5, 3))
    # Each 5 count as 8; so do not fit the third time.
    assert run_step(scheduler) == [("a", 5), ("b", 5)]
    assert run_step(scheduler) == [("c", 5)]
    scheduler = engine(block_size=4, kv_blocks=40)
    scheduler.add(fresh("a", 5, 3))
    scheduler.add(fresh("b", 13, 3))
    assert run_step(scheduler) == [("a", 5), ("b", 8)]
    assert run_step(scheduler) == [("b", 5)]


def test_a_prefill_batch_ends_at_max_prefill_tokens_though_not_within_them() -> None:
    scheduler = engine(max_prefill_tokens=5)
    scheduler.add(fresh("a", 12, 3))
    scheduler.add(fresh("b", 2, 3))
    assert run_step(scheduler) == [("a", 12)]
    assert run_step(scheduler) == [("b", 2)]


def test_without_chunks_only_the_first_may_be_longer_than_max_prefill_tokens() -> None:
    scheduler = engine(chunked_prefill=False, max_prefill_tokens=20)
    scheduler.add(fresh("a", 30, 3))
    scheduler.add(fresh("b", 5, 3))
    scheduler.add(fresh("c", 15, 3))
    assert run_step(scheduler) == [("a", 30)]
    assert run_step(scheduler) == [("b", 5)]  # 15 are not fewer than the 15 that are left
    assert run_step(scheduler) == [("c", 15)]


def test_no_more_run_than_may() -> None:
    scheduler = engine(max_num_seqs=2)
    scheduler.add(fresh("a", 2, 2))
    scheduler.add(fresh("b", 2, 9))
    scheduler.add(fresh("c", 2, 9))
    assert run_step(scheduler) == [("a", 2), ("b", 2)]
    assert run_step(scheduler) == [("a", 1), ("b", 1)]
    assert run_step(scheduler) == [("c", 2)]


# ------------------------------------------------------------------ looking ahead


@pytest.mark.parametrize(("tokens_max", "admitted"), [(53, True), (54, False)])
def test_admission_keeps_a_share_of_what_the_others_may_still_generate(
    tokens_max: int, admitted: bool
) -> None:
    # a holds 15 of 100 and may generate 40 more, so 20 of the 85 are kept. b's prompt, all that
    # it may generate, and a page of 1 have to be less than the 65 that are left.
    scheduler = engine()
    scheduler.restore(decoding("a", 13, 3, 20, tokens_max=43))
    scheduler.add(fresh("b", 10, 3, tokens_max))
    assert (run_step(scheduler) == [("b", 10)]) == admitted


def test_what_one_may_generate_counts_up_to_the_clip() -> None:
    kept = {"new_token_ratio_start": 1.0, "max_new_tokens_clip": 30}
    scheduler = engine(**kept)
    scheduler.restore(decoding("a", 10, 1, 20, tokens_max=80))  # holds 10, and 30 are kept
    scheduler.add(fresh("b", 29, 3, tokens_max=60))  # 29 + 30 + 1 are not less than 60
    assert run_step(scheduler) == [("a", 1)]
    scheduler = engine(**kept)
    scheduler.restore(decoding("a", 10, 1, 20, tokens_max=80))
    scheduler.add(fresh("b", 28, 3, tokens_max=60))
    assert run_step(scheduler) == [("b", 16)]


def test_those_admitted_before_in_the_same_batch_are_counted_whole() -> None:
    scheduler = engine(max_num_batched_tokens=64)
    scheduler.add(fresh("a", 10, 3, tokens_max=39))  # 10 + 39 + 1 of 100
    scheduler.add(fresh("b", 10, 3, tokens_max=39))  # 50, not less than the other 50
    assert run_step(scheduler) == [("a", 10)]
    # Now it decodes, and only half of what it may generate is kept: 90 - 19.
    assert run_step(scheduler) == [("b", 10)]


def test_a_full_batch_tries_nobody_until_somebody_leaves() -> None:
    scheduler = engine()
    scheduler.restore(decoding("a", 10, 1, 5, tokens_max=80))
    scheduler.restore(decoding("b", 10, 1, 50, tokens_max=80))
    scheduler.add(fresh("c", 1, 2))
    assert run_step(scheduler) == [("a", 1), ("b", 1)]  # 100 - 20 - 79
    assert ratio_and_full(scheduler) == (0.46, True)
    # In the next steps c would fit, since less and less is kept; but it is not tried.
    for _ in range(3):
        assert run_step(scheduler) == [("a", 1), ("b", 1)]
    assert ratio_and_full(scheduler) == (0.34, False)
    assert run_step(scheduler) == [("c", 1)]


def test_a_batch_that_had_nobody_is_tried_again_at_once() -> None:
    scheduler = engine(max_num_batched_tokens=64)
    scheduler.add(fresh("a", 50, 3, tokens_max=40))
    scheduler.add(fresh("b", 20, 3))
    plan = scheduler.step()
    assert ratio_and_full(scheduler) == (0.5, True)
    scheduler.complete(plan)
    assert ratio_and_full(scheduler) == (0.5, False)
    assert run_step(scheduler) == [("b", 20)]  # 20 + 3 + 1 are less than 50 - 19.5


def test_one_that_is_still_being_prefilled_opens_the_batch_again() -> None:
    scheduler = engine()
    scheduler.resume(Admission(0.5, True))
    scheduler.restore(decoding("a", 5, 1, 9))
    scheduler.restore(Sequence("b", 40, 5, computed=16, tokens_max=5))
    assert run_step(scheduler) == [("b", 16)]
    assert not scheduler.admission.batch_full


def test_a_full_batch_goes_on_with_a_prefill_but_lets_nobody_join_it() -> None:
    scheduler = engine()
    scheduler.restore(decoding("a", 5, 1, 9))
    scheduler.restore(Sequence("b", 20, 5, computed=16, tokens_max=5))
    scheduler.add(fresh("c", 2, 2))
    scheduler.resume(Admission(0.5, True))
    assert run_step(scheduler) == [("b", 4)]
    assert ratio_and_full(scheduler) == (0.5, True)
    assert run_step(scheduler) == [("a", 1), ("b", 1)]


def test_a_batch_whose_last_leaves_a_deficit_is_full_though_nobody_waits() -> None:
    scheduler = engine(block_size=4, kv_blocks=10)
    scheduler.restore(decoding("a", 4, 1, 3))
    scheduler.add(fresh("b", 13, 3, tokens_max=17))
    # 36 free, 1 kept: 13 + 17 + 4 = 34 are less than 35; 16 + 17 + 4 are charged.
    assert run_step(scheduler) == [("b", 13)]
    assert scheduler.admission.batch_full
    scheduler.add(fresh("c", 1, 1))
    assert run_step(scheduler) == [("a", 1), ("b", 1)]


# ------------------------------------------------------------------ the ratio


def test_the_ratio_falls_with_every_decode_step_and_starts_anew_after_idling() -> None:
    scheduler = engine()
    scheduler.add(fresh("a", 20, 12))
    ratios = []
    for _ in range(13):
        ratios.append(scheduler.admission.new_token_ratio)
        run_step(scheduler)
    # Two prefill steps, then 11 that decode, from 0.5 in tenths of 0.4 down to 0.1.
    assert ratios == pytest.approx([0.5, 0.5, *(0.5 - 0.04 * n for n in range(10)), 0.1])
    assert len(scheduler) == 0
    scheduler.add(fresh("b", 5, 2))
    assert scheduler.admission == Admission(0.5, False)


def test_the_ratio_never_falls_below_the_least_but_may_begin_below_it() -> None:
    ratio = NewTokenRatio(LIMITS)
    ratio.decay(1000)
    assert ratio.now == 0.1
    ratio.set(0.02)
    assert ratio.now == 0.02
    ratio.decay(1)
    assert ratio.now == 0.1


def test_ratios_of_the_engines_setting() -> None:
    assert token_ratios(1.0) == pytest.approx((0.7, 0.098))
    assert token_ratios(2.0) == pytest.approx((1.0, 0.14))


# ------------------------------------------------------------------ retraction


def test_the_least_generated_go_first_and_among_them_the_longest_prompts() -> None:
    scheduler = engine(kv_blocks=34)
    scheduler.restore(decoding("a", 4, 3, 20, tokens_max=25))
    scheduler.restore(decoding("b", 9, 2, 20))
    scheduler.restore(decoding("c", 7, 2, 20))
    scheduler.restore(decoding("d", 5, 4, 20, tokens_max=21))
    scheduler.add(fresh("e", 9, 3))
    scheduler.resume(Admission(0.5, batch_full=True))
    assert scheduler.blocks_free == 34 - (6 + 10 + 8 + 8)
    b = scheduler.running[1]
    plan = scheduler.step()  # four tokens are needed, two are there
    assert plan.preempted == ["b"]
    assert given_to(plan) == [("d", 1), ("a", 1), ("c", 1)]
    assert names(scheduler.waiting) == ["e", "b"]
    # (4 + 3 + 2 generated, and 20 more for each) of (21 + 25 + 20 + 1): more than all.
    assert scheduler.admission == Admission(1.0, batch_full=False)
    assert (b.computed, b.generated, b.blocks, b.preemptions) == (0, 2, 0, 1)


def test_the_ratio_after_a_retraction_is_what_the_others_needed_so_far() -> None:
    scheduler = SglangScheduler(
        msgspec.structs.replace(LIMITS, kv_blocks=52, retract_decode_steps=2)
    )
    scheduler.restore(decoding("a", 20, 9, 20, tokens_max=30))
    scheduler.restore(decoding("b", 20, 5, 20, tokens_max=30))
    run_step(scheduler)
    assert names(scheduler.running) == ["a"]
    assert scheduler.admission.new_token_ratio == pytest.approx((9 + 2) / (30 + 1))
    run_step(scheduler)
    assert names(scheduler.running) == ["a"]  # b would need 25 + 25 + 1 of 23


def test_of_equals_the_later_one_goes() -> None:
    scheduler = engine(kv_blocks=20)
    for key in ("a", "b", "c"):
        scheduler.restore(decoding(key, 5, 2, 9))
    assert scheduler.step().preempted == ["c"]  # 18 are held
    assert names(scheduler.running) == ["a", "b"]


def test_as_many_go_as_it_takes_and_one_always_stays() -> None:
    scheduler = engine(block_size=4, kv_blocks=5)
    for key in ("a", "b", "c", "d", "e"):
        scheduler.restore(decoding(key, 4, 1, 9))
    # All five need a block. Of the last two one is free after three have gone; so two stay.
    plan = scheduler.step()
    assert plan.preempted == ["e", "d", "c"]
    assert given_to(plan) == [("a", 1), ("b", 1)]
    assert scheduler.blocks_free == 1


def test_a_retracted_one_computes_its_prompt_and_its_answer_again() -> None:
    scheduler = engine(kv_blocks=40)
    b = decoding("b", 20, 5, 9)
    scheduler.restore(decoding("a", 10, 6, 8))
    scheduler.restore(b)
    assert run_step(scheduler) == [("a", 1)]
    assert scheduler.blocks_free == 40 - 16
    assert run_step(scheduler) == [("a", 1)]  # b's 25 + 4 + 1 are not there
    assert len(scheduler) == 1
    assert run_step(scheduler) == [("b", 16)]
    assert run_step(scheduler) == [("b", 9)]
    assert (b.generated, b.computed) == (6, 25)


# ------------------------------------------------------------------ what can be


def test_an_answer_is_bounded_so_that_an_empty_pool_always_admits() -> None:
    small = msgspec.structs.replace(LIMITS, block_size=4, kv_blocks=10)
    assert tokens_in_all(small) == 9 * 4 - 1
    scheduler = SglangScheduler(small)
    with pytest.raises(NeverFitsError, match="tokens_max of 6"):
        scheduler.add(fresh("a", 30, 3, tokens_max=6))
    with pytest.raises(ValueError, match="more than its tokens_max"):
        scheduler.add(Sequence("a", 30, 3))
    scheduler.add(fresh("a", 30, 5))
    for _ in range(2 + 4):
        assert run_step(scheduler)
    assert len(scheduler) == 0
    assert tokens_in_all(msgspec.structs.replace(LIMITS, max_model_len=50)) == 48


def test_a_chunk_that_is_no_multiple_of_the_page_is_refused() -> None:
    odd = msgspec.structs.replace(LIMITS, block_size=5)
    for make in (step_by_step, by_events):
        with pytest.raises(UnknownRulesError, match="page of 5"):
            make(odd)


def test_an_abort_opens_the_batch() -> None:
    scheduler = engine()
    scheduler.restore(decoding("a", 5, 1, 9))
    scheduler.restore(Sequence("b", 40, 5, computed=16, tokens_max=5))
    scheduler.add(fresh("c", 5, 5))
    scheduler.resume(Admission(0.5, True))
    assert scheduler.abort("c")
    assert ratio_and_full(scheduler) == (0.5, True)
    plan = scheduler.step()
    assert scheduler.abort("b")
    assert given_to(plan) == []
    assert ratio_and_full(scheduler) == (0.5, False)
    scheduler.complete(plan)
    assert run_step(scheduler) == [("a", 1)]


# ------------------------------------------------------------------ by events


def state(sequence: Sequence, phase: Any = "decoding") -> RequestState:
    return RequestState(
        sequence.key, phase, sequence.prompt_tokens, sequence.computed, sequence.generated,
        sequence.tokens_max, 1, sequence.target_tokens, 500,
    )  # fmt: skip


def ttft_ms(states: list[RequestState], asked: Probe, admission: Admission | None) -> float:
    """The newcomer's; both ways say the same."""
    plain = simulate(LIMITS, STEP_TIME, states, asked, expected=exactly, admission=admission)
    fast = Prepared(LIMITS, STEP_TIME, states, expected=exactly, admission=admission).probe(asked)
    assert fast.ttft_ms == pytest.approx(plain.ttft_ms)
    assert fast.steps == plain.steps
    return plain.ttft_ms


def test_a_newcomer_delays_all_by_its_prefill() -> None:
    states = [state(decoding("a", 4, 2, 9)), state(decoding("b", 4, 2, 9))]
    asked = probe(3, 1, max_tokens=9)
    prefill_ms = 1.0 + 1.7 + 0.0123 * 3 * 1.5 + 0.0789
    assert ttft_ms(states, asked, None) == pytest.approx(prefill_ms)
    prepared = Prepared(LIMITS, STEP_TIME, states, expected=exactly)
    delayed = prepared.probe(asked, horizon="all").finish_ms
    for key, ms in prepared.base().finish_ms.items():
        assert delayed[key] == pytest.approx(ms + prefill_ms)


def test_what_the_engine_carries_decides() -> None:
    states = [state(decoding("a", 10, 1, 4, tokens_max=80)), state(decoding("b", 10, 1, 50))]
    asked = probe(10, 9, max_tokens=9)
    at_once_ms = ttft_ms(states, asked, Admission(0.1))
    full_ms = ttft_ms(states, asked, Admission(0.1, batch_full=True))
    careful_ms = ttft_ms(states, asked, Admission(1.0))
    assert at_once_ms < full_ms == careful_ms
    assert ttft_ms([], asked, Admission(1.0, batch_full=True)) == ttft_ms([], asked, None)


def test_a_prefill_in_several_chunks_opens_a_full_batch() -> None:
    begun = Sequence("b", 40, 5, computed=10, tokens_max=5)  # 16, then 14 with the newcomer's 2
    states = [state(decoding("a", 5, 1, 9)), state(begun, "prefilling")]
    asked = probe(2, 1, max_tokens=2)
    first_ms = 1.0 + 0.31 * 16 + 0.0123 * 16 * (10 + 8) + 0.0789
    second_ms = 1.0 + 0.31 * 16 + 0.0123 * (14 * (26 + 7) + 2 * 1) + 2 * 0.0789
    for admission in (None, Admission(0.5, batch_full=True)):
        assert ttft_ms(states, asked, admission) == pytest.approx(first_ms + second_ms)


def test_a_published_state_hands_over_what_the_engine_carries() -> None:
    view = InstanceView("i")
    asked = probe(10, 9, max_tokens=9)
    states = [state(decoding("a", 10, 1, 50, tokens_max=80))]
    predictions = []
    for sequence, admission in enumerate([None, Admission(0.1), Admission(0.1, batch_full=True)]):
        update = StateUpdate(
            instance="i",
            boot="b",
            sequence=sequence,
            sent_at_ms=0.0,
            limits=LIMITS,
            step_time=STEP_TIME,
            requests=states,
            finished=[],
            admission=admission,
        )
        assert view.state(msgspec.msgpack.encode(update)) is None
        predictions.append(Oracle().predict(view.view(), asked).ttft_ms)
    unknown_ms, tried_ms, full_ms = predictions
    assert unknown_ms == tried_ms < full_ms


def test_retracted_ones_are_behind_a_newcomer() -> None:
    limits = msgspec.structs.replace(LIMITS, kv_blocks=52, new_token_ratio_start=0.0)
    states = [
        state(decoding("a", 20, 9, 19, tokens_max=20)),
        state(decoding("b", 20, 5, 19, tokens_max=20)),
        state(fresh("c", 45, 2), "waiting"),
    ]
    full = Admission(0.5, batch_full=True)
    prepared = Prepared(limits, STEP_TIME, states, expected=exactly, admission=full)
    # b is retracted at once, a goes on alone, then c, the newcomer, and b last.
    forecast = prepared.probe(probe(4, 2), horizon="all")
    finished = sorted(forecast.finish_ms, key=lambda key: forecast.finish_ms[key])
    assert finished == ["a", "c", "new", "b"]
    assert newcomer(limits, probe(4, 2), exactly).tokens_max == 52 - 2 - 4


def test_owed_tokens_are_counted_up_to_the_clip_as_time_goes_by() -> None:
    owed = OwedTokens(10)
    dues = {0: 4, 1: 30, 2: 12, 3: 30}
    for row, due in dues.items():
        owed.add(row, due, 0)
    for clock in range(4):
        assert owed.at(clock) == sum(min(due - clock, 10) for due in dues.values())
    owed.remove(0)
    owed.remove(3)
    owed.remove(7)
    other = owed.copy()
    other.remove(1)
    for clock in range(4, 13):
        assert owed.at(clock) == min(30 - clock, 10) + 12 - clock
    owed.add(3, 23, 12)
    assert owed.at(12) == 10 + 0 + 10
    assert owed.at(25) == 5 - 13 - 2
    assert other.at(12) == 0
