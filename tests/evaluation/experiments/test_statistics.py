"""Intervals against worked examples and scipy's own; capacities on curves drawn by hand."""

from math import exp, isnan, log, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evaluation.experiments.calibration import fitted_overhead
from evaluation.experiments.capacities import shown
from evaluation.experiments.capacity_of import Crossing, capacity, crossing
from evaluation.experiments.statistics import (
    mean_interval,
    paired_difference,
    paired_ratio,
)

T_975_TWO_DEGREES = 4.302653  # from a printed table

some_values = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30)


def test_an_interval_worked_by_hand() -> None:
    found = mean_interval([1.0, 2.0, 3.0])
    half = T_975_TWO_DEGREES * 1.0 / sqrt(3)
    assert found.mean == 2.0
    assert found.low == pytest.approx(2.0 - half, rel=1e-6)
    assert found.high == pytest.approx(2.0 + half, rel=1e-6)


@given(some_values)
def test_intervals_are_those_of_scipys_t_test(values: list[float]) -> None:
    found = mean_interval(values)
    if max(values) == min(values):
        assert found.high - found.low == pytest.approx(0.0, abs=1e-6)
        return
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(
        (expected.low, expected.high), rel=1e-6, abs=1e-6
    )


def test_one_seed_has_no_interval_and_none_has_no_mean() -> None:
    found = mean_interval([5.0])
    assert found.mean == 5.0
    assert isnan(found.low) and isnan(found.high)
    with pytest.raises(ValueError, match="no values"):
        mean_interval([])


def test_pairs_see_what_means_do_not() -> None:
    """Seeds that differ by 100 and policies that differ by 1."""
    ours = {seed: 100.0 * seed for seed in range(5)}
    theirs = {seed: 100.0 * seed + 1 + 0.01 * seed for seed in range(5)}
    found = paired_difference(ours, theirs)
    assert found.mean == pytest.approx(-1.02)
    assert found.high < 0
    low_high = [mean_interval(list(values.values())) for values in (ours, theirs)]
    assert low_high[0].high > low_high[1].low  # unpaired, they overlap altogether


@given(st.lists(st.tuples(st.floats(0.1, 1e4), st.floats(0.1, 1e4)), min_size=2, max_size=12))
def test_a_ratio_is_the_difference_of_logarithms(pairs: list[tuple[float, float]]) -> None:
    ours = {seed: pair[0] for seed, pair in enumerate(pairs)}
    theirs = {seed: pair[1] for seed, pair in enumerate(pairs)}
    ratio = paired_ratio(ours, theirs)
    logs = paired_difference(
        {seed: log(value) for seed, value in ours.items()},
        {seed: log(value) for seed, value in theirs.items()},
    )
    assert ratio.mean == pytest.approx(exp(logs.mean))
    swapped = paired_ratio(theirs, ours)
    assert swapped.mean == pytest.approx(1 / ratio.mean)
    assert swapped.low == pytest.approx(1 / ratio.high)


def test_what_is_not_paired_is_refused() -> None:
    with pytest.raises(ValueError, match="unpaired"):
        paired_difference({0: 1.0, 1: 2.0}, {0: 1.0, 2: 2.0})
    with pytest.raises(ValueError, match="positive"):
        paired_ratio({0: 0.0}, {0: 1.0})


def test_capacity_between_two_rates_is_log_linear() -> None:
    curve = {20.0: 1_000.0, 24.0: 4_000.0, 28.0: 16_000.0}
    for slo_ms, rate in ((2_000.0, 22.0), (8_000.0, 26.0), (4_000.0, 24.0)):
        found = crossing(curve, slo_ms)
        assert found.rate == pytest.approx(rate)
        assert found.bound == "exact"


def test_the_first_crossing_counts() -> None:
    curve = {20.0: 1_000.0, 22.0: 9_000.0, 24.0: 1_000.0, 26.0: 9_000.0}
    assert crossing(curve, 3_000.0).rate == pytest.approx(21.0)


def test_a_curve_that_never_or_always_breaks_the_slo_is_a_bound() -> None:
    curve = {30.0: 2_000.0, 20.0: 1_000.0}
    assert crossing(curve, 3_000.0) == Crossing(30.0, "at least")
    assert crossing(curve, 500.0) == Crossing(20.0, "at most")
    with pytest.raises(ValueError, match="no rates"):
        crossing({}, 3_000.0)


@given(
    st.dictionaries(st.integers(1, 60).map(float), st.floats(1.0, 1e6), min_size=1),
    st.floats(1.0, 1e6),
)
def test_a_capacity_lies_on_the_grid_and_no_rate_below_it_breaks_the_slo(
    curve: dict[float, float], slo_ms: float
) -> None:
    found = crossing(curve, slo_ms)
    assert min(curve) <= found.rate <= max(curve)
    if found.bound == "exact":
        assert all(p99 <= slo_ms for rate, p99 in curve.items() if rate < found.rate)
        assert any(p99 > slo_ms for rate, p99 in curve.items() if rate >= found.rate)


def test_capacity_over_seeds() -> None:
    exact = capacity({s: {20.0: 1.0 + s, 24.0: 4.0 + s} for s in range(3)}, 3.5)
    assert exact.bound == "exact"
    assert exact.interval.low < exact.interval.mean < exact.interval.high
    assert exact.by_seed[0] == pytest.approx(20 + 4 * log(3.5) / log(4))
    bounded = capacity({0: {20.0: 1.0, 24.0: 4.0}, 1: {20.0: 1.0, 24.0: 2.0}}, 3.0)
    assert (bounded.bound, bounded.bounded) == ("at least", 1)
    untold = capacity({0: {20.0: 5.0}, 1: {20.0: 1.0}}, 3.0)
    assert (untold.bound, untold.bounded) == ("untold", 2)
    shown_as = [shown(found) for found in (exact, bounded, untold)]
    assert shown_as[0].startswith("22.") and "±" in shown_as[0]
    assert shown_as[1:] == ["≥ 23.6 (1 of 2)", "about 20.0 (2 of 2)"]


def test_the_overhead_is_read_off_where_the_capacity_is_the_papers() -> None:
    falling = {0.0: 28.0, 1.0: 26.0, 3.0: 22.0}
    assert fitted_overhead(falling, 27.0) == pytest.approx(0.5)
    assert fitted_overhead(falling, 24.0) == pytest.approx(2.0)
    assert fitted_overhead(falling, 30.0) == 0.0
    assert fitted_overhead(falling, 20.0) == 3.0
