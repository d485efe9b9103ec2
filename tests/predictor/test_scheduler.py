"""Each rule with a case small enough to follow by hand, then whatever limits there may be."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.messages import EngineLimits
from predictor.scheduler import NeverFitsError, Scheduler, Sequence, StepPlan


def limits(
    *,
    kv_blocks: int = 100,
    block_size: int = 4,
    max_num_seqs: int = 8,
    budget: int = 16,
    max_model_len: int = 100,
    chunked_prefill: bool = True,
    reserve_full_isl: bool = True,
    watermark: float = 0.0,
) -> EngineLimits:
    return EngineLimits(
        rules="vllm",
        block_size=block_size,
        kv_blocks=kv_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
        chunked_prefill=chunked_prefill,
        reserve_full_isl=reserve_full_isl,
        watermark=watermark,
    )


def given_to(plan: StepPlan) -> list[tuple[str, int]]:
    return [(sequence.key, chunk) for sequence, chunk in plan.chunks]


def run_step(scheduler: Scheduler) -> list[tuple[str, int]]:
    plan = scheduler.step()
    scheduler.complete(plan)
    return given_to(plan)


def running(scheduler: Scheduler) -> list[str]:
    return [sequence.key for sequence in scheduler.running]


def waiting(scheduler: Scheduler) -> list[str]:
    return [sequence.key for sequence in scheduler.waiting]


def test_a_short_request_prefills_then_decodes_then_frees_its_blocks() -> None:
    scheduler = Scheduler(limits())
    a = Sequence("a", prompt_tokens=5, target_tokens=3)
    scheduler.add(a)

    plan = scheduler.step()
    assert given_to(plan) == [("a", 5)]
    assert plan.load.prefill_work == 5 * 2.5
    assert plan.load.context_tokens == 0
    assert scheduler.blocks_used == 2
    assert scheduler.complete(plan) == [(a, False)]
    assert a.generated == 1
    assert a.decoding

    plan = scheduler.step()
    assert given_to(plan) == [("a", 1)]
    assert (plan.load.tokens, plan.load.sequences) == (1, 1)
    assert plan.load.context_tokens == 5
    assert plan.load.prefill_work == 0
    assert scheduler.complete(plan) == [(a, False)]

    assert scheduler.complete(scheduler.step()) == [(a, True)]
    assert len(scheduler) == 0
    assert scheduler.blocks_used == 0
    assert run_step(scheduler) == []


def test_a_long_prompt_is_cut_into_chunks_and_gets_its_token_at_the_end() -> None:
    scheduler = Scheduler(limits(budget=16))
    a = Sequence("a", 40, 2)
    scheduler.add(a)
    assert run_step(scheduler) == [("a", 16)]
    assert not a.decoding
    plan = scheduler.step()
    assert given_to(plan) == [("a", 16)]
    assert plan.load.prefill_work == 16 * (16 + 8)
    assert scheduler.complete(plan) == []
    assert run_step(scheduler) == [("a", 8)]
    assert a.generated == 1


def test_the_running_list_goes_first_and_newcomers_share_what_is_left() -> None:
    scheduler = Scheduler(limits(budget=16))
    for key, prompt in [("a", 4), ("b", 30), ("c", 4)]:
        scheduler.add(Sequence(key, prompt, 5))
    assert run_step(scheduler) == [("a", 4), ("b", 12)]
    assert run_step(scheduler) == [("a", 1), ("b", 15)]
    assert run_step(scheduler) == [("a", 1), ("b", 3), ("c", 4)]


def test_decodes_behind_an_unfinished_prefill_wait_when_it_takes_the_whole_budget() -> None:
    scheduler = Scheduler(limits(budget=16))
    scheduler.restore(Sequence("a", 40, 5, computed=10))
    scheduler.restore(Sequence("b", 4, 5, computed=4, generated=1))
    assert run_step(scheduler) == [("a", 16)]
    assert run_step(scheduler) == [("a", 14), ("b", 1)]


def test_nobody_is_tried_behind_a_head_that_does_not_fit() -> None:
    scheduler = Scheduler(limits(kv_blocks=10))
    scheduler.restore(Sequence("a", 20, 5, computed=20, generated=1))
    scheduler.add(Sequence("large", 20, 5))
    scheduler.add(Sequence("small", 1, 1))
    assert run_step(scheduler) == [("a", 1)]
    assert waiting(scheduler) == ["large", "small"]


def test_the_whole_prompt_must_fit_although_only_a_chunk_is_allocated() -> None:
    # 5 of 8 blocks are taken, and a sixth in this step; 3 chunks of a 12-token prompt need 3.
    for reserve, admitted in [(True, False), (False, True)]:
        scheduler = Scheduler(limits(kv_blocks=8, budget=5, reserve_full_isl=reserve))
        scheduler.restore(Sequence("a", 20, 5, computed=20, generated=1))
        scheduler.add(Sequence("b", 12, 1))
        assert run_step(scheduler) == ([("a", 1), ("b", 4)] if admitted else [("a", 1)])
        assert scheduler.blocks_used == (7 if admitted else 6)


def test_the_batch_cap_holds() -> None:
    scheduler = Scheduler(limits(max_num_seqs=2))
    for key in "abc":
        scheduler.add(Sequence(key, 2, 2))
    assert run_step(scheduler) == [("a", 2), ("b", 2)]
    assert run_step(scheduler) == [("a", 1), ("b", 1)]
    assert run_step(scheduler) == [("c", 2)]


def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_holds_it() -> None:
    scheduler = Scheduler(limits(budget=16, chunked_prefill=False))
    for key, prompt in [("a", 10), ("b", 10), ("c", 1)]:
        scheduler.add(Sequence(key, prompt, 2))
    assert run_step(scheduler) == [("a", 10)]
    assert run_step(scheduler) == [("a", 1), ("b", 10), ("c", 1)]


def test_the_last_of_the_running_list_is_preempted_and_waits_at_the_front() -> None:
    scheduler = Scheduler(limits(kv_blocks=6))
    a = Sequence("a", 8, 9, computed=8, generated=1)
    b = Sequence("b", 6, 9, computed=7, generated=2)
    c = Sequence("c", 6, 9, computed=7, generated=2)
    for sequence in (a, b, c):
        scheduler.restore(sequence)
    scheduler.add(Sequence("d", 1, 1))

    plan = scheduler.step()  # a needs a third block, and all six are taken
    assert plan.preempted == ["c"]
    assert given_to(plan) == [("a", 1), ("b", 1)]
    assert (c.computed, c.generated, c.blocks, c.preemptions) == (0, 2, 0, 1)
    assert waiting(scheduler) == ["c", "d"]  # and d was not admitted, although it would fit
    assert scheduler.blocks_free == 1
    assert scheduler.preemptions == 1
    scheduler.complete(plan)

    # b needs its third block now; c needs two for 8 tokens: it is the head, so d waits too.
    assert run_step(scheduler) == [("a", 1), ("b", 1)]
    assert waiting(scheduler) == ["c", "d"]


def test_a_preempted_request_computes_what_it_had_generated_too() -> None:
    scheduler = Scheduler(limits())
    c = Sequence("c", 6, 4, generated=2, preemptions=1)
    scheduler.add(c)
    plan = scheduler.step()
    assert given_to(plan) == [("c", 8)]
    assert scheduler.complete(plan) == [(c, False)]
    assert c.generated == 3


def test_several_are_preempted_for_one() -> None:
    scheduler = Scheduler(limits(kv_blocks=8, budget=20))
    scheduler.restore(Sequence("a", 30, 2, computed=12))
    for key in "bcdef":
        scheduler.restore(Sequence(key, 3, 5, computed=3, generated=1))
    plan = scheduler.step()
    assert given_to(plan) == [("a", 18)]
    assert plan.preempted == ["f", "e", "d", "c", "b"]
    assert waiting(scheduler) == ["b", "c", "d", "e", "f"]


def test_a_request_can_preempt_itself() -> None:
    scheduler = Scheduler(limits(kv_blocks=4))
    scheduler.restore(Sequence("a", 4, 5, computed=5, generated=2))
    b = Sequence("b", 8, 5, computed=8, generated=1)
    scheduler.restore(b)
    plan = scheduler.step()
    assert given_to(plan) == [("a", 1)]
    assert plan.preempted == ["b"]
    assert (running(scheduler), waiting(scheduler)) == (["a"], ["b"])
    assert b.blocks == 0


def test_the_watermark_counts_only_beside_others() -> None:
    scheduler = Scheduler(limits(kv_blocks=10, watermark=0.5))
    scheduler.add(Sequence("a", 14, 9))  # 4 blocks, 6 free
    scheduler.add(Sequence("b", 1, 9))  # 1 block, and 5 kept
    scheduler.add(Sequence("c", 1, 9))
    assert run_step(scheduler) == [("a", 14), ("b", 1)]
    assert waiting(scheduler) == ["c"]

    alone = Scheduler(limits(kv_blocks=10, watermark=0.9))
    alone.add(Sequence("a", 14, 9))
    assert run_step(alone) == [("a", 14)]


def test_state_that_does_not_add_up_is_mended_by_preemption() -> None:
    scheduler = Scheduler(limits(kv_blocks=4))
    for key in "abc":
        scheduler.restore(Sequence(key, 7, 3, computed=7, generated=1))
    assert scheduler.blocks_free == -2
    plan = scheduler.step()  # nobody needs a block for this token
    scheduler.complete(plan)
    plan = scheduler.step()
    assert plan.preempted
    assert scheduler.blocks_free >= 0


def test_what_never_fits_is_refused() -> None:
    scheduler = Scheduler(limits(kv_blocks=3, max_model_len=13))
    assert scheduler.room(10) == 3
    scheduler.add(Sequence("a", 10, 3))
    for prompt, target in [(10, 4), (13, 1), (50, 1)]:
        with pytest.raises(NeverFitsError, match="b"):
            scheduler.add(Sequence("b", prompt, target))
    small = Scheduler(limits(kv_blocks=2))
    assert small.room(8) == 1  # the last token needs no KV entry
    assert small.room(9) == 0
    assert Scheduler(limits(chunked_prefill=False, budget=16)).room(10) == 7


@pytest.mark.parametrize(
    "sequence",
    [
        Sequence("a", 0, 1),
        Sequence("a", 5, 0),
        Sequence("a", 5, 3, generated=3),
        Sequence("a", 5, 3, computed=5),
        Sequence("taken", 5, 3),
    ],
)
def test_what_makes_no_sense_is_refused(sequence: Sequence) -> None:
    scheduler = Scheduler(limits())
    scheduler.add(Sequence("taken", 5, 3))
    with pytest.raises(ValueError, match=sequence.key):
        scheduler.add(sequence)


def test_steps_alternate_with_completions() -> None:
    scheduler = Scheduler(limits())
    plan = scheduler.step()
    with pytest.raises(RuntimeError):
        scheduler.step()
    scheduler.complete(plan)
    with pytest.raises(RuntimeError):
        scheduler.complete(plan)


def test_abort_in_the_middle_of_a_step_frees_blocks_and_gives_no_token() -> None:
    scheduler = Scheduler(limits())
    for key in "abc":
        scheduler.add(Sequence(key, 4, 5))
    plan = scheduler.step()
    assert scheduler.abort("b")
    assert not scheduler.abort("b")
    again = Sequence("b", 4, 5)
    scheduler.add(again)
    assert [s.key for s, _ in scheduler.complete(plan)] == ["a", "c"]
    assert again.generated == 0
    assert scheduler.blocks_used == 2
    assert scheduler.abort("b")
    assert scheduler.abort("a")
    assert scheduler.abort("c")
    assert (len(scheduler), scheduler.blocks_used) == (0, 0)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[EngineLimits, list[tuple[int, int, int]]]:
    """Limits, and requests as (step of arrival, prompt, target) that can fit."""
    chunked = draw(st.booleans())
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    kv_blocks = draw(st.integers(2, 30))
    drawn = limits(
        block_size=block_size,
        kv_blocks=kv_blocks,
        max_num_seqs=draw(st.integers(1, 8)),
        budget=draw(st.integers(1, 40)),
        max_model_len=draw(st.integers(2, 60)),
        chunked_prefill=chunked,
        reserve_full_isl=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.01, 0.3, 1.0])),
    )
    room = Scheduler(drawn).room
    requests = []
    for _ in range(draw(st.integers(1, 12))):
        prompt = draw(st.integers(1, 40))
        if room(prompt) >= 1:
            target = draw(st.integers(1, room(prompt)))
            requests.append((draw(st.integers(0, 20)), prompt, target))
    return drawn, requests


@settings(max_examples=300, deadline=None)
@given(worlds())
def test_blocks_are_conserved_and_everybody_finishes_once(
    world: tuple[EngineLimits, list[tuple[int, int, int]]],
) -> None:
    drawn, requests = world
    scheduler = Scheduler(drawn)
    arrivals = sorted(enumerate(requests), key=lambda numbered: numbered[1][0])
    tokens: dict[str, int] = {}
    finished: list[str] = []
    # Whoever is first of the running list advances in every step, and is recomputed at most
    # once for every other request's finish; far below this.
    bound = 100 + sum((prompt + target) * (len(requests) + 1) for _, prompt, target in requests)
    step = 0
    while arrivals or len(scheduler):
        assert step < bound
        while arrivals and arrivals[0][1][0] <= step:
            number, (_, prompt, target) = arrivals.pop(0)
            scheduler.add(Sequence(str(number), prompt, target))
        plan = scheduler.step()
        step += 1
        held = sum(s.blocks for s in scheduler.running)
        assert held == scheduler.blocks_used <= drawn.kv_blocks
        assert all(s.blocks == 0 and s.computed == 0 for s in scheduler.waiting)
        assert len(scheduler.running) <= drawn.max_num_seqs
        assert plan.load.tokens == sum(chunk for _, chunk in plan.chunks)
        assert plan.load.tokens <= drawn.max_num_batched_tokens
        assert plan.load.sequences == len(plan.chunks)
        assert plan.chunks or not len(scheduler)
        for sequence, chunk in plan.chunks:
            assert chunk >= 1
            assert sequence.blocks * drawn.block_size >= sequence.computed + chunk
        for sequence, last in scheduler.complete(plan):
            tokens[sequence.key] = tokens.get(sequence.key, 0) + 1
            if last:
                finished.append(sequence.key)
    assert sorted(finished) == sorted(map(str, range(len(requests))))
    assert tokens == {str(n): target for n, (_, _, target) in enumerate(requests)}
    assert scheduler.blocks_used == 0
