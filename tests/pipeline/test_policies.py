import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UsageError
from pipeline.messages import LengthEstimate, Prediction, Probe
from pipeline.policies import POLICIES, Target, make_policy
from pipeline.policies.power_of_two import PowerOfTwo

NEWCOMER = Probe(
    key="c.new",
    prompt_tokens=100,
    estimate=LengthEstimate(p10=10, p50=50, p90=200, source="test"),
)


def targets(*in_flight: int) -> list[Target]:
    return [Target(f"i{n}", "b", count) for n, count in enumerate(in_flight)]


def prediction(instance: str, cost: float) -> Prediction:
    return Prediction(instance=instance, ttft_ms=1, e2e_ms=cost, cost=cost, state_age_ms=0)


def names(order: Sequence[Target]) -> list[str]:
    return [target.instance for target in order]


@given(st.sampled_from(sorted(POLICIES)), st.lists(st.integers(0, 99), min_size=1, max_size=12))
def test_every_policy_orders_its_whole_shortlist(name: str, counts: list[int]) -> None:
    policy = make_policy(name, random.Random(1))
    shortlist = policy.shortlist(targets(*counts))
    choice = policy.choose(shortlist, {}, NEWCOMER)
    assert sorted(names(choice.order)) == sorted(names(shortlist))
    assert len(set(names(choice.order))) == len(choice.order) >= 1


def test_an_unknown_policy_is_refused_with_the_names() -> None:
    with pytest.raises(UsageError, match="power_of_two"):
        make_policy("best", random.Random(1))


def test_power_of_two_asks_two_different_ones_uniformly() -> None:
    policy = PowerOfTwo(random.Random(7))
    seen = Counter(
        name for _ in range(3000) for name in names(policy.shortlist(targets(0, 0, 0, 0)))
    )
    assert sum(seen.values()) == 6000
    assert all(1350 < count < 1650 for count in seen.values())


def test_power_of_two_takes_the_lower_cost_whatever_the_count() -> None:
    shortlist = targets(0, 9)
    costs = {"i0": prediction("i0", 500.0), "i1": prediction("i1", 400.0)}
    choice = PowerOfTwo(random.Random(1)).choose(shortlist, costs, NEWCOMER)
    assert names(choice.order) == ["i1", "i0"]
    assert not choice.fallback


def test_a_silent_candidate_comes_last() -> None:
    choice = PowerOfTwo(random.Random(1)).choose(
        targets(0, 9), {"i1": prediction("i1", 9e9)}, NEWCOMER
    )
    assert names(choice.order) == ["i1", "i0"]
    assert not choice.fallback


def test_with_nobody_answering_the_count_decides_and_says_so() -> None:
    choice = PowerOfTwo(random.Random(1)).choose(targets(5, 2), {}, NEWCOMER)
    assert names(choice.order) == ["i1", "i0"]
    assert choice.fallback


def test_equal_costs_are_broken_at_random() -> None:
    policy = PowerOfTwo(random.Random(3))
    same = {"i0": prediction("i0", 1.0), "i1": prediction("i1", 1.0)}
    first = Counter(
        policy.choose(targets(0, 0), same, NEWCOMER).order[0].instance for _ in range(400)
    )
    assert min(first.values()) > 140


def test_round_robin_takes_turns() -> None:
    policy = make_policy("round_robin", random.Random(1))
    three = targets(0, 0, 0)
    chosen = [
        policy.choose(policy.shortlist(three), {}, NEWCOMER).order[0].instance for _ in range(6)
    ]
    assert chosen[:3] == chosen[3:]
    assert sorted(chosen[:3]) == ["i0", "i1", "i2"]


def test_least_outstanding_takes_the_emptiest() -> None:
    policy = make_policy("least_outstanding", random.Random(1))
    assert names(policy.choose(targets(4, 1, 7), {}, NEWCOMER).order) == ["i1", "i0", "i2"]
