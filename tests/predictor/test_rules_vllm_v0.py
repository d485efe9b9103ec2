"""Where vLLM V0 differs from V1, each rule with a case small enough to follow by hand."""

import pytest

from pipeline.messages import EngineLimits
from predictor.queues import tokens_in_all
from predictor.rules import UnknownRulesError, by_events, step_by_step
from predictor.rules.vllm_v0_steps import V0Scheduler
from predictor.scheduler import NeverFitsError, Sequence, StepPlan


def limits(
    *, kv_blocks: int = 100, budget: int = 16, watermark: float = 0.0, chunked_prefill: bool = True
) -> EngineLimits:
    return EngineLimits(
        rules="vllm-v0",
        block_size=4,
        kv_blocks=kv_blocks,
        max_num_seqs=8,
        max_num_batched_tokens=budget,
        max_model_len=200,
        chunked_prefill=chunked_prefill,
        watermark=watermark,
    )


def run_step(scheduler: V0Scheduler) -> list[tuple[str, int]]:
    plan = scheduler.step()
    scheduler.complete(plan)
    return given_to(plan)


def given_to(plan: StepPlan) -> list[tuple[str, int]]:
    return [(sequence.key, chunk) for sequence, chunk in plan.chunks]


def test_a_prefill_is_given_the_blocks_of_its_whole_length() -> None:
    scheduler = V0Scheduler(limits(budget=8))
    scheduler.add(Sequence("a", 30, 5))
    assert run_step(scheduler) == [("a", 8)]
    assert scheduler.blocks_used == 8
    restored = V0Scheduler(limits())
    restored.restore(Sequence("a", 30, 5, computed=8))
    assert restored.blocks_used == 8


def test_nobody_goes_on_without_a_free_block_even_if_it_needs_none() -> None:
    scheduler = V0Scheduler(limits(kv_blocks=4))
    scheduler.restore(Sequence("a", 5, 3, computed=5, generated=1))
    b = Sequence("b", 5, 3, computed=5, generated=1)
    scheduler.restore(b)
    plan = scheduler.step()  # both have room in their second block, but no block is free
    assert plan.preempted == ["b"]
    assert given_to(plan) == [("a", 1)]
    assert (b.computed, b.blocks) == (0, 0)


def test_a_step_that_preempts_still_admits_and_the_preempted_wait_until_the_next() -> None:
    scheduler = V0Scheduler(limits(kv_blocks=4))
    scheduler.restore(Sequence("a", 5, 3, computed=5, generated=1))
    scheduler.restore(Sequence("b", 5, 3, computed=5, generated=1))
    scheduler.add(Sequence("c", 3, 2))
    plan = scheduler.step()
    assert plan.preempted == ["b"]
    assert given_to(plan) == [("a", 1), ("c", 3)]
    assert [sequence.key for sequence in scheduler.waiting] == ["b"]
    assert plan.open


def test_the_watermark_counts_in_an_empty_engine_too() -> None:
    tight = limits(kv_blocks=10, watermark=0.3)
    assert tokens_in_all(tight) == 7 * 4 + 1
    scheduler = V0Scheduler(tight)
    with pytest.raises(NeverFitsError):
        scheduler.add(Sequence("large", 29, 1))
    scheduler.add(Sequence("a", 12, 5))
    scheduler.add(Sequence("b", 4, 5))
    scheduler.add(Sequence("c", 16, 5))
    assert run_step(scheduler) == [("a", 12), ("b", 4)]
    assert [sequence.key for sequence in scheduler.waiting] == ["c"]


def test_decodes_come_first_and_unfinished_prefills_last() -> None:
    scheduler = V0Scheduler(limits(budget=16))
    scheduler.restore(Sequence("long", 40, 5))
    scheduler.restore(Sequence("short", 3, 5))
    scheduler.restore(Sequence("decode", 4, 5, computed=4, generated=1))
    # The budget reaches only the first; the others move in front of it.
    assert run_step(scheduler) == [("long", 16)]
    assert run_step(scheduler) == [("short", 3), ("decode", 1), ("long", 12)]
    assert [sequence.key for sequence in scheduler.running] == ["decode", "short", "long"]


def test_without_chunked_prefill_it_is_refused() -> None:
    other = limits(chunked_prefill=False)
    for make in (step_by_step, by_events):
        with pytest.raises(UnknownRulesError, match="chunked"):
            make(other)
