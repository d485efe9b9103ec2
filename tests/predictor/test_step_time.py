"""Step durations worked out by hand, and profiles that are of the measured size."""

import pytest

from pipeline.messages import StepTime
from predictor.step_time import (
    DEFAULT_PROFILE,
    LIMITS,
    PROFILES,
    StepLoad,
    scaled,
    step_ms,
)

ROUND = StepTime(
    base_ms=2.0, flat_ms=10.0, token_ms=0.1, prefill_ms=0.001, context_ms=0.01, sequence_ms=0.5
)


def test_an_empty_step_costs_base_and_weights() -> None:
    assert step_ms(ROUND, StepLoad()) == 12.0


def test_the_floor_holds_until_the_tokens_exceed_it() -> None:
    assert step_ms(ROUND, StepLoad(tokens=99)) == 12.0
    assert step_ms(ROUND, StepLoad(tokens=100)) == 12.0
    assert step_ms(ROUND, StepLoad(tokens=200)) == 22.0


def test_every_term_by_hand() -> None:
    # A chunk of 100 behind 300 computed ones: 100·(300 + 50). Two decodes on 40 and 60 tokens.
    load = StepLoad(tokens=102, prefill_work=35_000, context_tokens=100, sequences=3)
    assert step_ms(ROUND, load) == pytest.approx(2 + 10.2 + 35 + 1 + 1.5)


def test_profiles_and_limits_are_of_the_same_names() -> None:
    assert PROFILES.keys() == LIMITS.keys()
    assert DEFAULT_PROFILE in PROFILES


@pytest.mark.parametrize(
    ("profile", "tokens", "measured_ms"),
    [
        ("a30-llama-2-7b", 1, 19.6),
        ("a30-llama-2-7b", 1024, 142),
        ("a100-llama-2-7b", 512, 33.6),
        ("h100-llama-2-7b", 256, 9.3),
        ("a40-llama-2-7b", 512, 71.7),
        ("a30-qwen2-7b", 512, 65),
        ("a100x4-llama-2-70b", 512, 90),
    ],
)
def test_hinges_are_near_the_measured_medians(
    profile: str, tokens: int, measured_ms: float
) -> None:
    assert step_ms(PROFILES[profile], StepLoad(tokens=tokens)) == pytest.approx(
        measured_ms, rel=0.15
    )


def test_a_full_a30_step_takes_what_the_paper_implies() -> None:
    # 41 requests of 410 tokens: about 33 ms.
    load = StepLoad(tokens=41, context_tokens=41 * 410, sequences=41)
    assert step_ms(PROFILES[DEFAULT_PROFILE], load) == pytest.approx(33, rel=0.1)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_pool_holds_one_longest_request(profile: str) -> None:
    limits = LIMITS[profile]
    assert limits.kv_blocks * limits.block_size >= limits.max_model_len


def test_a_scaled_engine_takes_so_much_longer_for_every_step() -> None:
    load = StepLoad(tokens=300, prefill_work=1e5, context_tokens=9000, sequences=20)
    for coefficients in PROFILES.values():
        assert step_ms(scaled(coefficients, 0.25), load) == pytest.approx(
            step_ms(coefficients, load) / 4
        )
