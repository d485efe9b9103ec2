"""Forecasts against sums that can be done by hand."""

import pytest

from pipeline.errors import PromptTooLong
from pipeline.messages import EngineLimits, LengthEstimate, Phase, Probe, RequestState, StepTime
from predictor.simulation import simulate

STEP_TIME = StepTime(
    base_ms=1.0, flat_ms=9.0, token_ms=0.1, prefill_ms=0.001, context_ms=0.01, sequence_ms=0.5
)
LIMITS = EngineLimits(
    rules="vllm",
    block_size=16,
    kv_blocks=200,
    max_num_seqs=4,
    max_num_batched_tokens=512,
    max_model_len=2000,
)


def probe(prompt: int = 60, p50: float = 21, *, max_tokens: int | None = None) -> Probe:
    """A newcomer of known length: the figures below are worked out by hand."""
    return Probe(
        key="new",
        prompt_tokens=prompt,
        max_tokens=max_tokens,
        estimate=LengthEstimate(p10=p50, p50=p50, p90=p50, source="test"),
    )


def state(
    key: str,
    phase: Phase = "decoding",
    *,
    prompt: int = 60,
    computed: int | None = None,
    generated: int = 1,
    p50: float = 11,
    max_tokens: int = 1500,
) -> RequestState:
    return RequestState(
        key=key,
        phase=phase,
        prompt_tokens=prompt,
        computed_tokens=prompt + generated - 1 if computed is None else computed,
        generated_tokens=generated,
        max_tokens=max_tokens,
        p10=p50,
        p50=p50,
        p90=p50,
    )


def test_alone_on_an_idle_instance_in_closed_form() -> None:
    forecast = simulate(LIMITS, STEP_TIME, [], probe(prompt=60, p50=21))
    ttft = 1 + 9 + 0.001 * 60 * 30 + 0.5
    # Decode j reads 60 + j tokens of context, for j from 0 to 19.
    decodes = 20 * (1 + 9 + 0.5) + 0.01 * sum(60 + j for j in range(20))
    assert forecast.ttft_ms == pytest.approx(ttft)
    assert forecast.e2e_ms == pytest.approx(ttft + decodes)
    assert forecast.tpot_ms == pytest.approx(decodes / 20)
    assert forecast.finish_ms == {"new": forecast.e2e_ms}
    assert (forecast.steps, forecast.preemptions) == (21, 0)
    assert forecast.kv_blocks_peak == 5  # the 81st token is never computed
    assert not forecast.extrapolated


def test_a_long_prompt_takes_several_chunks_above_the_floor() -> None:
    forecast = simulate(LIMITS, STEP_TIME, [], probe(prompt=700, p50=1))
    first = 1 + 51.2 + 0.001 * 512 * 256 + 0.5
    second = 1 + 18.8 + 0.001 * 188 * (512 + 94) + 0.5
    assert forecast.ttft_ms == forecast.e2e_ms == pytest.approx(first + second)
    assert forecast.tpot_ms == 0


def test_a_full_batch_makes_the_newcomer_wait_for_the_first_to_leave() -> None:
    running = [state(f"r{i}", p50=11 + i) for i in range(4)]  # 10, 11, 12 and 13 more tokens
    forecast = simulate(LIMITS, STEP_TIME, running, probe(p50=1))
    waits = 10 * (10 + 4 * 0.5) + 0.01 * sum(4 * (60 + j) for j in range(10))
    joins = 10 + 4 * 0.5 + 0.01 * 3 * 70 + 0.001 * 60 * 30
    assert forecast.finish_ms["r0"] == pytest.approx(waits)
    assert forecast.ttft_ms == pytest.approx(waits + joins)
    assert forecast.steps == 11
    assert set(forecast.finish_ms) == {"r0", "r1", "new"}


def test_the_queue_is_served_before_the_newcomer() -> None:
    queue = [state(f"w{i}", "waiting", computed=0, generated=0, p50=3) for i in range(8)]
    forecast = simulate(LIMITS, STEP_TIME, queue, probe(p50=2))
    assert forecast.steps == 3 + 3 + 2
    alone = simulate(LIMITS, STEP_TIME, [], probe(p50=2))
    assert forecast.ttft_ms > alone.ttft_ms


def test_running_ones_are_restored_before_waiting_ones_and_preempted_ones_recompute() -> None:
    limits = EngineLimits(
        rules="vllm",
        block_size=16,
        kv_blocks=200,
        max_num_seqs=2,
        max_num_batched_tokens=512,
        max_model_len=2000,
    )
    requests = [
        state("running", p50=6),
        state("preempted", "preempted", computed=0, generated=4, p50=6),
        state("waiting", "waiting", computed=0, generated=0, p50=5),
    ]
    finish = simulate(limits, STEP_TIME, requests, probe(p50=4)).finish_ms
    # Steps 1 and 2 give preempted its last two, steps 1 to 5 running, 3 to 7 waiting, then 6 to 9.
    assert finish["preempted"] < finish["running"] < finish["waiting"]
    first = 10 + 2 * 0.5 + 0.01 * 60 + 0.001 * 64 * 32
    second = 10 + 2 * 0.5 + 0.01 * (61 + 64)
    assert finish["preempted"] == pytest.approx(first + second)


def test_an_unfinished_prefill_goes_on_where_it_was() -> None:
    prefilling = state("p", "prefilling", prompt=1000, computed=512, generated=0, p50=1)
    forecast = simulate(LIMITS, STEP_TIME, [prefilling], probe(prompt=20, p50=1))
    assert forecast.steps == 1
    expected = 1 + 0.1 * 508 + 0.001 * (488 * (512 + 244) + 20 * 10) + 0.5 * 2
    assert forecast.e2e_ms == pytest.approx(expected)
    assert forecast.kv_blocks_peak == 63 + 2


def test_a_tight_pool_shows_in_preemptions() -> None:
    requests = [state(f"r{i}", prompt=700, p50=300) for i in range(4)]
    forecast = simulate(LIMITS, STEP_TIME, requests, probe(p50=300))
    assert forecast.preemptions > 0
    assert forecast.kv_blocks_peak <= LIMITS.kv_blocks


def test_the_newcomers_length_is_bounded_by_max_tokens_and_room() -> None:
    assert simulate(LIMITS, STEP_TIME, [], probe(p50=500, max_tokens=7)).steps == 7
    assert simulate(LIMITS, STEP_TIME, [], probe(prompt=1990, p50=500)).steps == 4 + 9
    with pytest.raises(PromptTooLong) as caught:
        simulate(LIMITS, STEP_TIME, [], probe(prompt=2000))
    assert (caught.value.field, caught.value.limit) == ("prompt", 1999)


def test_beyond_steps_max_it_says_that_it_extrapolates() -> None:
    whole = simulate(LIMITS, STEP_TIME, [], probe(p50=400))
    cut = simulate(LIMITS, STEP_TIME, [], probe(p50=400), steps_max=200)
    assert not whole.extrapolated
    assert cut.extrapolated
    assert cut.steps == 200
    assert cut.ttft_ms == whole.ttft_ms
    assert cut.e2e_ms == pytest.approx(whole.e2e_ms, rel=0.1)
    assert cut.finish_ms["new"] == cut.e2e_ms


def test_extrapolation_of_a_request_that_is_still_waiting() -> None:
    running = [state(f"r{i}", p50=401) for i in range(4)]
    whole = simulate(LIMITS, STEP_TIME, running, probe(p50=10))
    cut = simulate(LIMITS, STEP_TIME, running, probe(p50=10), steps_max=100)
    assert cut.extrapolated
    # Low, since the mean of the first 100 steps does not know how the contexts will grow.
    assert cut.ttft_ms == pytest.approx(whole.ttft_ms, rel=0.3)
    assert cut.e2e_ms > cut.ttft_ms
    with pytest.raises(ValueError, match="steps_max"):
        simulate(LIMITS, STEP_TIME, [], probe(), steps_max=0)


def test_a_state_that_does_not_add_up_still_gives_a_forecast() -> None:
    odd = [
        state("done", generated=30, max_tokens=30),
        state("too long", prompt=5000),
        state("ahead of itself", computed=9999),
        state("empty", "waiting", prompt=0, computed=0, generated=0),
        state("twice"),
        state("twice", "waiting"),
        state("new"),
        *(state(f"over {i}", prompt=1900) for i in range(5)),
    ]
    forecast = simulate(LIMITS, STEP_TIME, odd, probe(prompt=0, p50=0))
    assert forecast.e2e_ms > 0
