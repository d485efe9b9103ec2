"""Random engines and ledgers, small enough that everything that can happen does."""

from typing import Literal

from hypothesis import strategies as st

from pipeline.messages import (
    Admission,
    EngineLimits,
    LengthEstimate,
    Phase,
    Probe,
    RequestState,
    StepTime,
)

Rules = Literal["vllm", "vllm-v0", "sglang"]

STEP_TIME = StepTime(
    base_ms=1.0,
    flat_ms=1.7,
    token_ms=0.31,
    prefill_ms=0.0123,
    context_ms=0.00457,
    sequence_ms=0.0789,
)
"""With the hinge between 5 and 6 tokens, and no two terms in a simple ratio."""


def probe(prompt: int, target: int, *, key: str = "new", max_tokens: int | None = None) -> Probe:
    return Probe(
        key=key,
        prompt_tokens=prompt,
        max_tokens=max_tokens,
        estimate=LengthEstimate(p10=target, p50=target, p90=target, source="test"),
    )


def exactly(generated: int, p10: float, p50: float, p90: float, tokens_max: int) -> int:
    """A length function that takes the median as the truth."""
    return min(max(int(p50), generated + 1), tokens_max)


@st.composite
def limits(draw: st.DrawFn, rules: Rules = "vllm") -> EngineLimits:
    if rules == "sglang":
        return draw(_sglang_limits())
    block_size = draw(st.sampled_from([1, 2, 3, 4, 8, 16]))
    return EngineLimits(
        rules=rules,
        block_size=block_size,
        kv_blocks=draw(st.integers(1, 40)),
        max_num_seqs=draw(st.integers(1, 10)),
        max_num_batched_tokens=draw(st.integers(1, 40)),
        max_model_len=draw(st.integers(3, 120)),
        chunked_prefill=rules != "vllm" or draw(st.sampled_from([True, True, True, False])),
        reserve_full_isl=draw(st.sampled_from([True, True, False])),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.01, 0.1, 0.5])),
    )


@st.composite
def _sglang_limits(draw: st.DrawFn) -> EngineLimits:
    """With pools and ratios that let in too many as well as too few."""
    block_size = draw(st.sampled_from([1, 1, 2, 3, 4, 8]))
    start = draw(st.sampled_from([0.0, 0.05, 0.3, 0.7, 1.0]))
    return EngineLimits(
        rules="sglang",
        block_size=block_size,
        kv_blocks=draw(st.integers(3, 60 if block_size > 1 else 150)),
        max_num_seqs=draw(st.integers(1, 10)),
        max_num_batched_tokens=block_size * draw(st.integers(1, 12)),
        max_model_len=draw(st.integers(5, 120)),
        chunked_prefill=draw(st.sampled_from([True, True, True, False])),
        max_prefill_tokens=draw(st.sampled_from([1, 7, 20, 16_384])),
        new_token_ratio_start=start,
        new_token_ratio_min=start * draw(st.sampled_from([0.0, 0.14, 1.0])),
        new_token_ratio_decay_steps=draw(st.sampled_from([1, 5, 30, 600])),
        max_new_tokens_clip=draw(st.sampled_from([1, 5, 20, 4096])),
        retract_decode_steps=draw(st.sampled_from([0, 2, 20])),
    )


def admissions() -> st.SearchStrategy[Admission | None]:
    """What SGLang's scheduler carries along, or nothing told of it."""
    return st.none() | st.builds(Admission, st.sampled_from([0.0, 0.04, 0.5, 1.0]), st.booleans())


@st.composite
def requests(draw: st.DrawFn) -> list[RequestState]:
    """In an order that the engine could have them in, or in any; within the pool, or not."""
    count = draw(st.integers(0, 14))
    longest = draw(st.sampled_from([4, 12, 40]))
    states = [draw(_state(f"r{number}", longest)) for number in range(count)]
    if draw(st.integers(0, 3)):
        order: list[Phase] = ["decoding", "prefilling", "preempted", "waiting"]
        states.sort(key=lambda state: order.index(state.phase))
    return states


@st.composite
def _state(draw: st.DrawFn, key: str, longest: int) -> RequestState:
    phase: Phase = draw(
        st.sampled_from(["decoding", "decoding", "decoding", "prefilling", "preempted", "waiting"])
    )
    prompt = draw(st.integers(1, longest))
    fresh = phase == "waiting" or (phase == "prefilling" and draw(st.booleans()))
    generated = 0 if fresh else draw(st.integers(phase == "decoding", longest))
    computed = 0
    if phase == "decoding":
        computed = prompt + generated - 1
    elif phase == "prefilling":
        computed = draw(st.integers(0, prompt + generated - 1))
    return RequestState(
        key=key,
        phase=phase,
        prompt_tokens=prompt,
        computed_tokens=computed,
        generated_tokens=generated,
        max_tokens=draw(st.integers(1, 200)),
        p10=1,
        p50=generated + draw(st.integers(1, longest)),
        p90=500,
    )
