"""The conditional expectation of an answer's length: properties, and a check by sampling."""

import random
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from predictor.lengths import OUTLIVED_TAIL, TAIL_MIN, Z, expected_total

NO_LIMIT = 2**31

Quantiles = tuple[float, float, float]


def in_order(given: Quantiles) -> Quantiles:
    p10, p50, p90 = sorted(given)
    return p10, p50, p90


quantiles = st.tuples(*[st.floats(0.5, 1e5)] * 3).map(in_order)


@given(
    generated=st.integers(0, 2_000_000),
    quantiles=st.tuples(*[st.floats()] * 3),
    room=st.integers(1, 2_000_000),
)
@example(generated=0, quantiles=(1.0, 1.0, 1e9), room=NO_LIMIT)
def test_at_least_one_more_and_at_most_the_limit_whatever_the_quantiles(
    generated: int, quantiles: Quantiles, room: int
) -> None:
    total = expected_total(generated, *quantiles, generated + room)
    assert isinstance(total, int)
    assert generated < total <= generated + room


@given(
    quantiles=quantiles,
    tokens_max=st.integers(1, 5_000),
    generated=st.lists(st.integers(0, 5_000), min_size=2, max_size=20).map(sorted),
)
def test_it_never_falls_as_the_answer_grows(
    quantiles: Quantiles, tokens_max: int, generated: list[int]
) -> None:
    totals = [
        expected_total(tokens, *quantiles, tokens_max)
        for tokens in generated
        if tokens < tokens_max
    ]
    assert all(earlier <= later for earlier, later in pairwise(totals))


@given(
    quantiles=quantiles,
    generated=st.integers(0, 5_000),
    limits=st.tuples(*[st.integers(1, 5_000)] * 2),
)
def test_it_never_falls_as_the_limit_grows(
    quantiles: Quantiles, generated: int, limits: tuple[int, int]
) -> None:
    low, high = sorted(limits)
    assert expected_total(generated, *quantiles, generated + low) <= expected_total(
        generated, *quantiles, generated + high
    )


@given(length=st.integers(1, 10_000), share=st.floats(0, 0.999))
def test_equal_quantiles_are_a_known_length(length: int, share: float) -> None:
    assert expected_total(int(share * length), length, length, length, NO_LIMIT) == length


@given(quantiles=quantiles, beyond=st.floats(1.0, 20.0))
def test_whoever_outlived_the_estimate_is_not_nearly_done(
    quantiles: Quantiles, beyond: float
) -> None:
    generated = int(quantiles[2] * beyond) + 1
    more = expected_total(generated, *quantiles, NO_LIMIT) / generated - 1
    assert more >= 1 / (OUTLIVED_TAIL - 1) - 1e-6
    assert more <= 1 / (TAIL_MIN - 1) + 1 / generated + 1e-3


def test_the_more_was_generated_past_the_estimate_the_more_is_to_come() -> None:
    left = [expected_total(g, 100, 200, 400, NO_LIMIT) - g for g in (400, 600, 900, 2000)]
    assert left == sorted(left) and left[-1] > 3 * left[0]


def test_a_wide_estimate_expects_more_than_a_narrow_one() -> None:
    assert expected_total(0, 50, 200, 800, NO_LIMIT) > expected_total(0, 150, 200, 260, NO_LIMIT)
    assert 200 <= expected_total(0, 150, 200, 260, NO_LIMIT) <= 215


def test_a_known_length_that_was_wrong_goes_on() -> None:
    assert expected_total(100, 100, 100, 100, NO_LIMIT) == 129
    assert expected_total(100, 100, 100, 100, 120) == 114
    assert expected_total(100, 100, 100, 100, 101) == 101


@pytest.mark.parametrize("generated", [0, 60, 150, 250, 399])
@pytest.mark.parametrize("tokens_max", [180, 350, 500, 4000])
def test_it_is_the_expectation_of_the_distribution(generated: int, tokens_max: int) -> None:
    if generated >= tokens_max:
        return
    p10, p50, p90 = 80.0, 200.0, 400.0
    rng = random.Random(1)
    survivors: list[float] = []
    tail = 0.17549833 / 0.1 * Z / 0.6931471805599453
    for _ in range(50_000):
        u = rng.random()
        if u > 0.9:
            length = p90 * ((1 - u) / 0.1) ** (-1 / tail)
        else:
            z = rng.gauss(0, 1)
            while z > Z:
                z = rng.gauss(0, 1)
            length = p50 * ((p50 / p10) if z < 0 else (p90 / p50)) ** (z / Z)
        if length > generated:
            survivors.append(min(length, tokens_max))
    mean = sum(survivors) / len(survivors)
    assert expected_total(generated, p10, p50, p90, tokens_max) == pytest.approx(
        mean, rel=0.01, abs=1
    )
