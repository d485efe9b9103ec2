"""Gaps have the mean and the spread that were asked for, and one seed means one pattern."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.workloads.arrivals import gamma_arrivals, recorded_arrivals, truncated
from pipeline.errors import UsageError

rates = st.floats(0.1, 1000)
shapes = st.floats(0.05, 20)
seeds = st.integers(0, 99)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_rate_and_the_spread_of_their_burstiness(burstiness: float) -> None:
    at_ms = gamma_arrivals(
        np.random.default_rng(1), rate=20, burstiness=burstiness, requests=100_000
    )
    gaps = np.diff(at_ms, prepend=0.0)
    assert gaps.mean() == pytest.approx(50, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.02)


@given(rates, rates, shapes, seeds)
def test_gaps_are_the_same_numbers_scaled_by_the_rate(
    one: float, two: float, burstiness: float, seed: int
) -> None:
    first, second = (
        gamma_arrivals(
            np.random.default_rng(seed), rate=rate, burstiness=burstiness, requests=3_000
        )
        for rate in (one, two)
    )
    np.testing.assert_allclose(first * one, second * two, rtol=1e-9)
    assert np.all(np.diff(first) >= 0)


@given(rates, shapes, seeds, st.integers(1, 3_000))
def test_fewer_requests_are_the_first_of_more(
    rate: float, burstiness: float, seed: int, few: int
) -> None:
    first, longer = (
        gamma_arrivals(
            np.random.default_rng(seed), rate=rate, burstiness=burstiness, requests=requests
        )
        for requests in (few, 3_000)
    )
    assert np.array_equal(first, longer[:few])


@given(rates, seeds, st.floats(1, 5_000))
def test_a_duration_ends_where_the_longer_pattern_would_pass_it(
    rate: float, seed: int, duration_ms: float
) -> None:
    within = gamma_arrivals(np.random.default_rng(seed), rate=rate, duration_ms=duration_ms)
    longer = gamma_arrivals(np.random.default_rng(seed), rate=rate, requests=len(within) + 1)
    assert np.array_equal(within, longer[:-1])
    assert longer[-1] > duration_ms
    assert np.all(within <= duration_ms)


def test_the_sooner_of_the_two_ends_counts() -> None:
    rng = np.random.default_rng
    few = gamma_arrivals(rng(1), rate=100, requests=5, duration_ms=1e6)
    assert len(few) == 5
    assert len(gamma_arrivals(rng(1), rate=100, requests=5, duration_ms=few[2])) == 3


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=50), st.floats(0.1, 100))
def test_recorded_gaps_keep_their_proportions(times: list[float], speed: float) -> None:
    at_ms = np.sort(times)
    faster = recorded_arrivals(at_ms, speed=speed)
    assert faster[0] == 0
    np.testing.assert_allclose(faster * speed, at_ms - at_ms[0], atol=1e-6)


def test_recorded_times_are_rescaled_to_a_mean_rate() -> None:
    at_ms = np.array([500.0, 600.0, 900.0, 1500.0])
    assert recorded_arrivals(at_ms).tolist() == [0, 100, 400, 1000]
    # Three gaps in 1.5 s are two requests per second.
    assert recorded_arrivals(at_ms, rate=2).tolist() == [0, 150, 600, 1500]
    assert at_ms[0] == 500.0
    assert recorded_arrivals(at_ms[:1], rate=2).tolist() == [0]


def test_times_are_cut_by_duration() -> None:
    at_ms = np.array([0.0, 10.0, 20.0, 30.0])
    assert truncated(at_ms, duration_ms=20).tolist() == [0, 10, 20]
    assert truncated(at_ms, duration_ms=None).tolist() == at_ms.tolist()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rate": 0.0, "requests": 1}, "rate: 0 given"),
        ({"rate": float("inf"), "requests": 1}, "rate: inf given"),
        ({"rate": 1.0, "requests": 1, "burstiness": -1.0}, "burstiness: -1 given"),
        ({"rate": 1.0, "requests": 0}, "requests: 0 given, must be 1 to"),
        ({"rate": 1.0}, "requests or duration_ms"),
        ({"rate": 1.0, "duration_ms": float("nan")}, "duration_ms: nan given"),
    ],
)
def test_what_makes_no_sense_is_named(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        gamma_arrivals(np.random.default_rng(0), **wrong)  # type: ignore[arg-type]


def test_a_recorded_pace_that_makes_no_sense_is_named() -> None:
    with pytest.raises(UsageError, match="same instant"):
        recorded_arrivals(np.array([5.0, 5.0]), rate=1)
    with pytest.raises(UsageError, match="one of the two"):
        recorded_arrivals(np.array([5.0, 6.0]), rate=1, speed=1)
    with pytest.raises(UsageError, match="speed: 0 given"):
        recorded_arrivals(np.array([5.0, 6.0]), speed=0)
