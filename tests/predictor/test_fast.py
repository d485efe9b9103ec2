"""The fast simulation and the plain one say the same, whatever the engine and its state."""

import os
import random

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from pipeline.errors import PromptTooLong
from pipeline.messages import Admission, EngineLimits, Probe, RequestState
from predictor import simulation
from predictor.fast import Prepared, simulate_fast, trajectory
from predictor.forecast import Base, Forecast, Horizon, marginal_delay_ms
from predictor.queues import tokens_in_all
from predictor.rules import UnknownRulesError
from tests.predictor.worlds import STEP_TIME, Rules, admissions, exactly, limits, probe, requests

EXAMPLES = int(os.environ.get("FAST_EXAMPLES", "500"))
ENOUGH_STEPS = 1_000_000


def reference(
    drawn: EngineLimits,
    states: list[RequestState],
    asked: Probe,
    horizon: Horizon,
    admission: Admission | None = None,
) -> Forecast:
    return simulation.simulate(
        drawn, STEP_TIME, states, asked,
        steps_max=ENOUGH_STEPS, horizon=horizon, expected=exactly, admission=admission,
    )  # fmt: skip


def assert_same(fast: Forecast, plain: Forecast) -> None:
    assert fast.steps == plain.steps
    assert fast.preemptions == plain.preemptions
    assert fast.preemptions_horizon == plain.preemptions_horizon
    assert fast.kv_blocks_peak == plain.kv_blocks_peak
    assert fast.kv_blocks_free_min == plain.kv_blocks_free_min
    assert fast.never_fits == plain.never_fits
    assert not fast.extrapolated
    assert not plain.extrapolated
    for name in ("ttft_ms", "e2e_ms", "tpot_ms"):
        assert getattr(fast, name) == pytest.approx(getattr(plain, name), rel=1e-9, abs=1e-9), name
    assert_same_times(dict(fast.finish_ms), dict(plain.finish_ms))


def assert_same_times(fast: dict[str, float], plain: dict[str, float]) -> None:
    assert fast.keys() == plain.keys()
    assert fast == pytest.approx(plain, rel=1e-9, abs=1e-9)


def assert_same_base(fast: Base, plain: Base) -> None:
    assert_same_times(dict(fast.finish_ms), dict(plain.finish_ms))
    assert (fast.preemptions, fast.kv_blocks_peak, fast.steps, fast.never_fits) == (
        plain.preemptions, plain.kv_blocks_peak, plain.steps, plain.never_fits,
    )  # fmt: skip


newcomers = st.builds(
    lambda prompt, target, more: probe(
        prompt, target, max_tokens=None if more is None else target + more
    ),
    st.integers(1, 60),
    st.integers(1, 60),
    st.none() | st.integers(0, 60),
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.one_of(limits("vllm"), limits("vllm-v0"), limits("sglang"), limits("sglang")),
    requests(),
    st.lists(newcomers, min_size=1, max_size=3),
    st.booleans(),
    admissions(),
)
def test_event_by_event_is_step_by_step(
    drawn: EngineLimits,
    states: list[RequestState],
    asked: list[Probe],
    base_first: bool,
    admission: Admission | None,
) -> None:
    prepared = Prepared(drawn, STEP_TIME, states, expected=exactly, admission=admission)
    plain_base = simulation.trajectory(
        drawn, STEP_TIME, states, steps_max=ENOUGH_STEPS, expected=exactly, admission=admission
    )
    if base_first:
        assert_same_base(prepared.base(), plain_base)
    for one in asked:
        if tokens_in_all(drawn) <= one.prompt_tokens:
            with pytest.raises(PromptTooLong):
                prepared.probe(one)
            continue
        for horizon in ("newcomer", "all"):
            plain = reference(drawn, states, one, horizon, admission)
            fast = prepared.probe(one, horizon=horizon)
            assert_same(fast, plain)
            event(f"{drawn.rules}, preemptions {min(plain.preemptions_horizon, 9)}")
            if horizon == "all":
                assert marginal_delay_ms(prepared.base(), fast) == pytest.approx(
                    marginal_delay_ms(plain_base, plain), rel=1e-7, abs=1e-7
                )
    assert_same_base(prepared.base(), plain_base)


ROOMY = EngineLimits(
    rules="vllm",
    block_size=16,
    kv_blocks=400,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    max_model_len=1000,
)
TIGHT = msgspec.structs.replace(ROOMY, kv_blocks=30)


def decoding(key: str, prompt: int, generated: int, target: int) -> RequestState:
    return RequestState(
        key=key,
        phase="decoding",
        prompt_tokens=prompt,
        computed_tokens=prompt + generated - 1,
        generated_tokens=generated,
        max_tokens=500,
        p10=1,
        p50=target,
        p90=500,
    )


def waiting(key: str, prompt: int, target: int) -> RequestState:
    return msgspec.structs.replace(
        decoding(key, prompt, 0, target), phase="waiting", computed_tokens=0
    )


@pytest.mark.parametrize("rules", ["vllm", "vllm-v0", "sglang"])
@pytest.mark.parametrize("seed", range(4))
def test_a_large_engine_that_is_short_of_blocks(rules: Rules, seed: int) -> None:
    """As long answers as in life: jumps over many blocks, and preemptions that others follow."""
    rng = random.Random(seed)
    drawn = EngineLimits(
        rules=rules,
        block_size=16,
        kv_blocks=250,
        max_num_seqs=24,
        max_num_batched_tokens=512,
        max_model_len=2048,
        watermark=0.01,
        new_token_ratio_start=0.05,
        new_token_ratio_min=0.0,
    )
    states = [
        decoding(f"r{n}", rng.randint(1, 80), rng.randint(1, 80), rng.randint(90, 450))
        for n in range(20)
    ]
    states += [waiting(f"w{n}", rng.randint(1, 200), rng.randint(1, 450)) for n in range(15)]
    prepared = Prepared(drawn, STEP_TIME, states, expected=exactly)
    often = 1 if rules == "sglang" else 5  # it is more careful after the first
    for prompt, target in ((1, 400), (300, 3), (120, 200)):
        asked = probe(prompt, target, max_tokens=500)
        for horizon in ("newcomer", "all"):
            plain = reference(drawn, states, asked, horizon)
            assert plain.preemptions_horizon > often
            assert_same(prepared.probe(asked, horizon=horizon), plain)


def test_a_newcomer_delays_those_present_and_nobody_after_them() -> None:
    states = [decoding("soon", 20, 5, 8), decoding("later", 20, 5, 400)]
    base = trajectory(ROOMY, STEP_TIME, states, expected=exactly)
    assert base.empty_ms == base.finish_ms["later"]
    prepared = Prepared(ROOMY, STEP_TIME, states, expected=exactly)
    delays = [
        marginal_delay_ms(base, prepared.probe(probe(10, target), horizon="all"))
        for target in (5, 50)
    ]
    assert 0 < delays[0] < delays[1]
    short = prepared.probe(probe(10, 5))
    assert set(short.finish_ms) == {"soon", "new"}
    assert len(short.finish_ms) == 2


def test_a_key_that_is_there_already_is_not_counted_twice() -> None:
    states = [decoding("a", 20, 5, 80), decoding("new", 20, 5, 400)]
    prepared = Prepared(ROOMY, STEP_TIME, states, expected=exactly)
    assert_same(prepared.probe(probe(10, 5)), reference(ROOMY, states, probe(10, 5), "newcomer"))
    assert set(prepared.base().finish_ms) == {"a", "new"}


def test_what_can_never_fit_is_named() -> None:
    states = [decoding("a", 20, 5, 80), decoding("huge", 5000, 5, 6000)]
    prepared = Prepared(ROOMY, STEP_TIME, states, expected=exactly)
    assert prepared.base().never_fits == prepared.probe(probe(1, 1)).never_fits == ("huge",)
    with pytest.raises(PromptTooLong):
        prepared.probe(probe(1000, 1))


@pytest.mark.parametrize("events_max", [1, 3, 4])
def test_beyond_events_max_it_says_that_it_extrapolates(events_max: int) -> None:
    states = [decoding(f"r{n}", 40, 5, 100 + 7 * n) for n in range(6)]
    for drawn in (ROOMY, TIGHT):
        whole = simulate_fast(drawn, STEP_TIME, states, probe(60, 200), expected=exactly)
        cut = simulate_fast(
            drawn, STEP_TIME, states, probe(60, 200), expected=exactly, events_max=events_max
        )
        assert cut.extrapolated
        assert not whole.extrapolated
        assert 0 < cut.ttft_ms <= cut.e2e_ms
        assert cut.finish_ms["new"] == cut.e2e_ms
        base = Prepared(drawn, STEP_TIME, states, expected=exactly, events_max=events_max).base()
        assert base.extrapolated


def test_a_newcomer_that_overtakes_one_preempted_in_the_same_step() -> None:
    v0 = EngineLimits(
        rules="vllm-v0",
        block_size=4,
        kv_blocks=10,
        max_num_seqs=4,
        max_num_batched_tokens=8,
        max_model_len=18,
    )
    states = [
        decoding("running", 1, 1, 6),
        waiting("first", 1, 5),
        waiting("long", 16, 2),
        waiting("last", 6, 1),
    ]
    for horizon in ("newcomer", "all"):
        fast = Prepared(v0, STEP_TIME, states, expected=exactly).probe(probe(1, 2), horizon=horizon)
        assert_same(fast, reference(v0, states, probe(1, 2), horizon))


def test_the_delay_of_all_asks_for_a_forecast_of_all() -> None:
    base = Base({}, preemptions=0, kv_blocks_peak=0, steps=0)
    with pytest.raises(ValueError, match="everybody"):
        marginal_delay_ms(base, reference(ROOMY, [], probe(1, 1), "newcomer"))


def test_rules_that_are_not_there_are_not_replaced_by_others() -> None:
    other = msgspec.structs.replace(ROOMY, rules="tgi")
    with pytest.raises(UnknownRulesError, match="tgi"):
        Prepared(other, STEP_TIME, [])
    with pytest.raises(UnknownRulesError, match="tgi"):
        simulation.simulate(other, STEP_TIME, [], probe(1, 1))
