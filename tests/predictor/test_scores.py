"""Scores by hand, and the order that they put forecasts in."""

from dataclasses import replace
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UsageError
from predictor.scores import (
    DEFAULT_SCORE,
    SCORES,
    Outlook,
    make_score,
    miss_chance,
    needs_the_whole_horizon,
)

OUTLOOK = Outlook(
    ttft_ms=300, e2e_ms=5_000, preemptions=1, preemptions_horizon=3, marginal_delay_ms=700
)


@pytest.mark.parametrize(
    ("name", "cost"),
    [("e2e", 5_000), ("ttft", 300), ("preemption_averse", 8_000), ("marginal", 5_700)],
)
def test_by_hand(name: str, cost: float) -> None:
    assert make_score(name)(OUTLOOK) == cost


def test_parameters() -> None:
    assert make_score("preemption_averse:10")(OUTLOOK) == 5_030
    assert make_score("marginal:2")(OUTLOOK) == 6_400
    assert make_score("marginal:0")(OUTLOOK) == make_score("e2e")(OUTLOOK)


def test_a_wrong_name_lists_the_right_ones() -> None:
    with pytest.raises(UsageError, match="e2e, ttft, preemption_averse, marginal, slo"):
        make_score("fastest")
    assert DEFAULT_SCORE in SCORES
    assert [name for name in SCORES if needs_the_whole_horizon(name)] == [
        "preemption_averse",
        "marginal",
    ]
    assert needs_the_whole_horizon("marginal:0.5")


@pytest.mark.parametrize(
    "name",
    ["preemption_averse:-1", "marginal:inf", "marginal:nan", "marginal:", "marginal:x", "e2e:1"],
)
def test_parameters_are_checked(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        make_score(name)


def test_slo_prefers_the_better_chance_to_the_sooner_end() -> None:
    slo = make_score("slo")
    tight = replace(OUTLOOK, deadline_ms=5_500, e2e_ms=5_000, e2e_spread=0.4)
    sure = replace(OUTLOOK, deadline_ms=5_500, e2e_ms=5_100, e2e_spread=0.02)
    assert slo(sure) < slo(tight)
    assert miss_chance(replace(OUTLOOK, deadline_ms=5_000)) == pytest.approx(0.5)
    # One standard deviation below the deadline.
    at_one_sigma = replace(OUTLOOK, deadline_ms=5_000 * 1.161834, e2e_spread=0.15)
    assert miss_chance(at_one_sigma) == pytest.approx(0.1587, abs=1e-3)


@pytest.mark.parametrize("deadline_ms", [None, -5.0, 1.0, 1e9])
def test_slo_breaks_ties_by_e2e(deadline_ms: float | None) -> None:
    slo = make_score("slo")
    order = [1_000.0, 1_000.1, 50_000.0, 5e6]
    costs = [slo(replace(OUTLOOK, e2e_ms=e2e_ms, deadline_ms=deadline_ms)) for e2e_ms in order]
    assert costs == sorted(costs) and len(set(costs)) == len(costs)


@given(
    e2e_ms=st.floats(0, allow_nan=False),
    deadline_ms=st.none() | st.floats(allow_nan=False),
    spread=st.floats(0, 10),
)
def test_slo_is_always_a_number(e2e_ms: float, deadline_ms: float | None, spread: float) -> None:
    outlook = replace(OUTLOOK, e2e_ms=e2e_ms, deadline_ms=deadline_ms, e2e_spread=spread)
    assert isfinite(make_score("slo")(outlook))
    assert 0 <= miss_chance(outlook) <= 1


@given(
    pair=st.tuples(st.floats(1, 1e6), st.floats(1, 1e6)),
    deadline_ms=st.none() | st.floats(1, 1e6),
)
def test_slo_never_prefers_the_later_one_of_the_same_spread(
    pair: tuple[float, float], deadline_ms: float | None
) -> None:
    sooner, later = sorted(pair)
    slo = make_score("slo")
    at = replace(OUTLOOK, deadline_ms=deadline_ms)
    assert slo(replace(at, e2e_ms=sooner)) <= slo(replace(at, e2e_ms=later))
