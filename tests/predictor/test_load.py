"""The load that an instance reports: by hand, and against the scheduler's own account."""

from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import PromptTooLong
from pipeline.messages import EngineLimits, Load, RequestState, StateUpdate
from pipeline.subjects import Header
from predictor.load import load_answer, load_of
from predictor.queues import resolve
from predictor.rules import restored
from predictor.view import InstanceView, View
from tests.predictor import worlds

LIMITS = EngineLimits(
    rules="vllm",
    block_size=16,
    kv_blocks=100,
    max_num_seqs=8,
    max_num_batched_tokens=512,
    max_model_len=1024,
)
DECODING = RequestState("c.decoding", "decoding", 200, 204, 5, 500, 150, 150, 150)
PREFILLING = RequestState("c.prefilling", "prefilling", 300, 128, 0, 500, 50, 50, 50)
WAITING = RequestState("c.waiting", "waiting", 40, 0, 0, 500, 10, 10, 10)
PREEMPTED = RequestState("c.preempted", "preempted", 30, 0, 20, 500, 60, 60, 60)


def instance_view(*requests: RequestState, limits: EngineLimits = LIMITS) -> InstanceView:
    view = InstanceView("a")
    view.apply(
        StateUpdate(
            instance="a",
            boot="b",
            sequence=1,
            sent_at_ms=0.0,
            limits=limits,
            step_time=worlds.STEP_TIME,
            requests=list(requests),
            finished=[],
        )
    )
    return view


def a_view(*requests: RequestState, limits: EngineLimits = LIMITS) -> View:
    return instance_view(*requests, limits=limits).view()


def test_an_idle_instance_has_all_its_blocks_and_nothing_to_do() -> None:
    assert load_of(a_view()) == Load(
        running=0,
        waiting=0,
        kv_blocks_free=100,
        waiting_prompt_blocks=0,
        outstanding_tokens=0,
        prefill_tokens_waiting=0,
    )


def test_by_hand() -> None:
    assert load_of(a_view(DECODING, PREFILLING, WAITING, PREEMPTED)) == Load(
        running=2,
        waiting=2,
        kv_blocks_free=100 - 13 - 8,  # 204 and 128 tokens
        waiting_prompt_blocks=3 + 4,  # 40 tokens, and 30 + 20 that are computed again
        outstanding_tokens=(200 + 150 - 204) + (300 + 50 - 128) + (40 + 10) + (30 + 60),
        prefill_tokens_waiting=(300 - 128) + 40 + (30 + 20),
    )


def test_v0_gives_a_prefill_all_its_blocks_at_once() -> None:
    limits = msgspec.structs.replace(LIMITS, rules="vllm-v0")
    assert load_of(a_view(PREFILLING, limits=limits)).kv_blocks_free == 100 - 19


def test_what_is_on_its_way_waits() -> None:
    view = instance_view(DECODING)
    view.queued(
        {
            Header.REQUEST: "c.coming",
            Header.PROMPT_TOKENS: "40",
            Header.MAX_TOKENS: "0",
            Header.ESTIMATE: "10,10,10",
        }
    )
    load = load_of(view.view())
    assert (load.running, load.waiting) == (1, 1)
    assert load.waiting_prompt_blocks == 3
    assert load.prefill_tokens_waiting == 40
    assert load.outstanding_tokens == 146 + 50


def test_a_ledger_that_holds_more_than_there_is_leaves_no_block() -> None:
    limits = msgspec.structs.replace(LIMITS, kv_blocks=20)
    assert load_of(a_view(DECODING, PREFILLING, limits=limits)).kv_blocks_free == 0


def test_the_newcomer_is_no_load_on_itself() -> None:
    view = a_view(DECODING, WAITING)
    answer = load_answer(view, worlds.probe(40, 10, key=WAITING.key))
    assert answer.load == load_of(a_view(DECODING))
    assert (answer.ttft_ms, answer.e2e_ms, answer.cost) == (0, 0, 0)


def test_a_newcomer_that_never_fits_is_refused() -> None:
    with pytest.raises(PromptTooLong, match="no room"):
        load_answer(a_view(), worlds.probe(1024, 10))


@given(st.data(), st.sampled_from(["vllm", "vllm-v0"]), worlds.requests())
def test_it_is_the_schedulers_own_account(
    data: st.DataObject, rules: str, requests: list[RequestState]
) -> None:
    limits = data.draw(worlds.limits(cast(worlds.Rules, rules)))
    view = a_view(*requests, limits=limits)
    load = load_of(view)
    engine = restored(limits, resolve(limits, requests))
    assert load.running == len(engine.running)
    assert load.waiting == len(engine.waiting)
    assert load.kv_blocks_free == max(0, engine.blocks_free)
    assert load.prefill_tokens_waiting <= load.outstanding_tokens


@given(st.data(), worlds.requests())
def test_what_it_says_is_left_to_compute_is_what_the_scheduler_computes(
    data: st.DataObject, requests: list[RequestState]
) -> None:
    """Where nobody is preempted, and up to the one token of each answer that is never computed."""
    limits = msgspec.structs.replace(
        data.draw(worlds.limits()), kv_blocks=10_000, chunked_prefill=True, max_model_len=10_000
    )
    load = load_of(a_view(*requests, limits=limits))
    engine = restored(limits, resolve(limits, requests))
    count, computed = len(engine), 0
    while len(engine):
        plan = engine.step()
        computed += plan.load.tokens
        engine.complete(plan)
    assert load.outstanding_tokens == computed + count
