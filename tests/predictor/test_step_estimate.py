"""Estimates from data sheets against the profiles that were measured."""

from dataclasses import replace

import pytest

from predictor.step_time import (
    GPUS,
    PROFILES,
    GpuNumbers,
    ModelNumbers,
    StepLoad,
    estimated,
    step_ms,
)

LLAMA_7B = ModelNumbers(parameters=6.5e9, layers=32, width=4096)
LLAMA_70B = ModelNumbers(parameters=68.7e9, layers=80, width=8192, kv_heads_share=1 / 8)
QWEN_7B = ModelNumbers(parameters=6.5e9, layers=28, width=3584, kv_heads_share=1 / 7)
MEASURED: dict[str, tuple[ModelNumbers, GpuNumbers]] = {
    "a30-llama-2-7b": (LLAMA_7B, GPUS["a30"]),
    "a40-llama-2-7b": (LLAMA_7B, GPUS["a40"]),
    "a100-llama-2-7b": (LLAMA_7B, GPUS["a100"]),
    "h100-llama-2-7b": (LLAMA_7B, GPUS["h100"]),
    "a30-qwen2-7b": (QWEN_7B, GPUS["a30"]),
    "a100x4-llama-2-70b": (LLAMA_70B, replace(GPUS["a100"], count=4)),
}


def test_every_profile_is_compared() -> None:
    assert MEASURED.keys() == PROFILES.keys()


@pytest.mark.parametrize("profile", MEASURED)
@pytest.mark.parametrize(
    "load",
    [
        StepLoad(tokens=1, context_tokens=400, sequences=1),
        StepLoad(tokens=41, context_tokens=41 * 410, sequences=41),
        StepLoad(tokens=512, prefill_work=512 * 256, sequences=1),
        StepLoad(tokens=512, prefill_work=480 * 2000, context_tokens=32 * 400, sequences=33),
        StepLoad(tokens=2048, prefill_work=2048 * 1024, sequences=2),
    ],
    ids=["one", "decode", "prefill", "mixed", "large"],
)
def test_it_is_near_the_measured_profile(profile: str, load: StepLoad) -> None:
    guess = step_ms(estimated(*MEASURED[profile]), load)
    assert guess == pytest.approx(step_ms(PROFILES[profile], load), rel=0.2)


def test_smaller_weights_stream_faster_and_compute_alike() -> None:
    whole = estimated(LLAMA_7B, GPUS["a100"])
    quantised = estimated(replace(LLAMA_7B, weight_bytes=0.5), GPUS["a100"])
    assert step_ms(quantised, StepLoad(tokens=1)) < step_ms(whole, StepLoad(tokens=1)) / 3
    assert quantised.token_ms == whole.token_ms
    assert quantised.base_ms >= 0


def test_a_mixture_streams_all_its_experts_and_computes_few() -> None:
    mixture = ModelNumbers(
        parameters=3e9, weights_streamed=30e9, layers=48, width=2048, kv_heads_share=1 / 8
    )
    c = estimated(mixture, GPUS["h100"])
    assert c.flat_ms / c.token_ms == pytest.approx(920)
    assert c.base_ms >= 0
