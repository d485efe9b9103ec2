import random
from collections import Counter
from collections.abc import Sequence
from typing import overload

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UsageError
from pipeline.messages import LengthEstimate, Load, Prediction, Probe
from pipeline.policies import POLICIES, Target, check_policy, make_policy, policies_help
from pipeline.policies.min_qpm import SENT_MAX, MinQpm
from pipeline.policies.power_of_two import PowerOfTwo

NEWCOMER = Probe(
    key="c.new",
    prompt_tokens=100,
    estimate=LengthEstimate(p10=10, p50=50, p90=200, source="test"),
)
READS_FEW = ("power_of_two", "power_of_two:5", "random", "round_robin", "least_outstanding:2")


def targets(*in_flight: int) -> list[Target]:
    return [Target(f"i{n}", "b", count) for n, count in enumerate(in_flight)]


def prediction(instance: str, cost: float, load: Load | None = None) -> Prediction:
    return Prediction(
        instance=instance, ttft_ms=1, e2e_ms=cost, cost=cost, state_age_ms=0, load=load
    )


def names(order: Sequence[Target]) -> list[str]:
    return [target.instance for target in order]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class LazyTargets(Sequence[Target]):
    """A thousand of them, each made when it is read."""

    def __init__(self) -> None:
        self.read: set[int] = set()

    def __len__(self) -> int:
        return 1000

    @overload
    def __getitem__(self, place: int) -> Target: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Target]: ...
    def __getitem__(self, place: int | slice) -> Target | Sequence[Target]:
        if isinstance(place, slice):
            return [self[n] for n in range(*place.indices(len(self)))]
        if not 0 <= place < len(self):
            raise IndexError(place)
        self.read.add(place)
        return Target(f"i{place}", "b", place % 7)


# ------------------------------------------------------------------ every policy


@given(
    st.sampled_from([*sorted(POLICIES), "power_of_two:1", "least_tokens:3", "least_outstanding:2"]),
    st.lists(st.integers(0, 99), min_size=1, max_size=12),
    st.sets(st.integers(0, 11)),
)
def test_every_policy_orders_its_whole_shortlist(
    name: str, counts: list[int], answering: set[int]
) -> None:
    policy = make_policy(name, random.Random(1))
    shortlist = policy.shortlist(targets(*counts))
    load = Load(
        running=1,
        waiting=0,
        kv_blocks_free=0,
        waiting_prompt_blocks=0,
        outstanding_tokens=9,
        prefill_tokens_waiting=0,
    )
    answers = {f"i{n}": prediction(f"i{n}", 5.0, load) for n in answering}
    choice = policy.choose(shortlist, answers, NEWCOMER)
    assert sorted(names(choice.order)) == sorted(names(shortlist))
    assert len(set(names(choice.order))) == len(choice.order) >= 1
    assert policy.needs == "nothing" or choice.fallback == answers.keys().isdisjoint(
        names(shortlist)
    )


@pytest.mark.parametrize("name", READS_FEW)
def test_a_rule_that_considers_a_few_reads_a_few_of_many(name: str) -> None:
    many = LazyTargets()
    shortlist = make_policy(name, random.Random(1)).shortlist(many)
    assert {f"i{n}" for n in many.read} == set(names(shortlist))
    assert len(many.read) <= 16


@pytest.mark.parametrize("name", [*READS_FEW, "least_tokens:4", "polled:2.5:least_outstanding"])
def test_the_name_is_what_was_written(name: str) -> None:
    assert make_policy(name, random.Random(1)).name == name


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_the_help_has_a_line_for_every_policy(name: str) -> None:
    (line,) = [
        line for line in policies_help().split("\n\n") if line.split("[")[0].split(":")[0] == name
    ]
    assert len(line) > len(name) + 2


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("best", "power_of_two"),
        ("", "power_of_two"),
        ("random:2", "no parameter"),
        ("fan_out:", "no parameter"),
        ("llumnix:3", "no parameter"),
        ("power_of_two:", "1 to 1000"),
        ("power_of_two:0", "1 to 1000"),
        ("power_of_two:1001", "1 to 1000"),
        ("power_of_two:two", "1 to 1000"),
        ("power_of_two:-1", "1 to 1000"),
        ("power_of_two:²", "1 to 1000"),
        ("least_tokens:" + "9" * 5000, "1 to 1000"),
        ("least_outstanding:2:3", "1 to 1000"),
        ("polled:", "polled:SECONDS"),
        ("polled:5", "polled:SECONDS"),
        ("polled:nan:least_outstanding", "polled:SECONDS"),
        ("polled:0:least_outstanding", "polled:SECONDS"),
        ("polled:5:power_of_two", "polled:SECONDS"),
        ("polled:5:least_outstanding:0", "1 to 1000"),
    ],
)
def test_a_name_that_means_nothing_is_refused_with_what_would(name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_policy(name)


# ------------------------------------------------------------------ by prediction


@pytest.mark.parametrize("choices", [2, 3])
def test_power_of_k_asks_k_different_ones_uniformly(choices: int) -> None:
    policy = make_policy(f"power_of_two:{choices}", random.Random(7))
    draws = [names(policy.shortlist(targets(0, 0, 0, 0))) for _ in range(3000)]
    assert all(len(set(draw)) == choices for draw in draws)
    seen = Counter(name for draw in draws for name in draw)
    expected = 3000 * choices / 4
    assert all(0.9 * expected < count < 1.1 * expected for count in seen.values())
    assert len(policy.shortlist(targets(0))) == 1


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


def test_fan_out_asks_all_and_takes_the_best_of_them() -> None:
    policy = make_policy("fan_out", random.Random(1))
    assert policy.needs == "prediction"
    shortlist = policy.shortlist(targets(*[0] * 30))
    assert len(shortlist) == 30
    costs = {f"i{n}": prediction(f"i{n}", float((n - 17) ** 2)) for n in range(30)}
    assert policy.choose(shortlist, costs, NEWCOMER).order[0].instance == "i17"


# ------------------------------------------------------------------ by what the dispatcher knows


def test_random_takes_everybody_as_often() -> None:
    policy = make_policy("random", random.Random(5))
    four = targets(9, 0, 0, 0)
    first = Counter(
        policy.choose(policy.shortlist(four), {}, NEWCOMER).order[0].instance for _ in range(2000)
    )
    assert all(425 < count < 575 for count in first.values())
    assert len(first) == 4


def test_round_robin_takes_turns() -> None:
    policy = make_policy("round_robin", random.Random(1))
    three = targets(0, 0, 0)
    orders = [names(policy.choose(policy.shortlist(three), {}, NEWCOMER).order) for _ in range(6)]
    chosen = [order[0] for order in orders]
    assert chosen[:3] == chosen[3:]
    assert sorted(chosen[:3]) == ["i0", "i1", "i2"]
    assert orders[0][1] == chosen[1], "the next in turn takes it where an inbox is full"


def test_dispatchers_that_start_together_do_not_walk_in_step() -> None:
    twelve = targets(*[0] * 12)
    firsts = {
        make_policy("round_robin", random.Random(seed)).shortlist(twelve)[0].instance
        for seed in range(20)
    }
    assert len(firsts) > 5


def test_least_outstanding_takes_the_emptiest() -> None:
    policy = make_policy("least_outstanding", random.Random(1))
    assert names(policy.choose(targets(4, 1, 7), {}, NEWCOMER).order) == ["i1", "i0", "i2"]


def test_least_outstanding_of_two_never_takes_the_fullest() -> None:
    policy = make_policy("least_outstanding:2", random.Random(1))
    counts = targets(4, 1, 7)
    first = Counter(
        policy.choose(policy.shortlist(counts), {}, NEWCOMER).order[0].instance for _ in range(600)
    )
    assert set(first) == {"i0", "i1"}, "in two draws of three the emptiest is one of the two"
    assert 350 < first["i1"] < 450


def test_min_qpm_counts_what_it_sent_within_a_minute() -> None:
    clock = Clock()
    policy = make_policy("min_qpm", random.Random(1), clock=clock)
    three = targets(50, 0, 0)

    def chosen(among: list[Target]) -> str:
        return policy.choose(policy.shortlist(among), {}, NEWCOMER).order[0].instance

    assert sorted(chosen(three) for _ in range(3)) == ["i0", "i1", "i2"], "whatever runs there"
    assert [chosen(three[:1]) for _ in range(4)] == ["i0"] * 4
    assert {chosen(three) for _ in range(8)} == {"i1", "i2"}, "until they have five as well"
    assert sorted(chosen(three) for _ in range(3)) == ["i0", "i1", "i2"]
    clock.now = 59.9
    assert [chosen(three[:1]) for _ in range(2)] == ["i0"] * 2
    clock.now = 60.0
    # Of the first minute only those two are left.
    assert sorted(chosen(three) for _ in range(4)) == ["i1", "i1", "i2", "i2"]


def test_min_qpm_remembers_a_bounded_number() -> None:
    policy = MinQpm(random.Random(1), Clock())
    first, second = targets(0, 0)
    for _ in range(SENT_MAX):
        policy.choose([first], {}, NEWCOMER)
    for _ in range(SENT_MAX):
        policy.choose([second], {}, NEWCOMER)
    assert policy.choose([first, second], {}, NEWCOMER).order[0] == first
    assert len(policy._sent) == sum(policy._counts.values()) == SENT_MAX


def test_polled_counts_stay_as_they_were_until_the_next_poll() -> None:
    clock = Clock()
    policy = make_policy("polled:5:least_outstanding", random.Random(1), clock=clock)

    def chosen(*in_flight: int) -> Target:
        return policy.choose(policy.shortlist(targets(*in_flight)), {}, NEWCOMER).order[0]

    assert chosen(3, 1) == Target("i1", "b", 1)
    clock.now = 4.9
    assert chosen(0, 99) == Target("i1", "b", 1), "the record has the count that decided"
    assert chosen(0, 99, 0) == Target("i2", "b", 0), "a new one is polled when it is first seen"
    assert chosen(0, 99, 50) == Target("i2", "b", 0)
    clock.now = 5.0
    assert chosen(0, 99, 50) == Target("i0", "b", 0)


def test_polled_herds_where_live_counts_spread() -> None:
    def most_on_one(name: str) -> int:
        policy = make_policy(name, random.Random(3), clock=Clock())
        counts = dict.fromkeys(("i0", "i1", "i2", "i3"), 0)
        counts["i0"] = -1  # free by one request
        for _ in range(40):
            now = [Target(instance, "b", count) for instance, count in counts.items()]
            first = policy.choose(policy.shortlist(now), {}, NEWCOMER).order[0]
            counts[first.instance] += 1
        return max(counts.values())

    assert most_on_one("least_outstanding") == 10
    assert most_on_one("polled:5:least_outstanding") == 39


# ------------------------------------------------------------------ by what is committed


def committed(*shares: float) -> list[Target]:
    return [Target(f"i{n}", "b", 9 - n, share) for n, share in enumerate(shares)]


def test_sifted_asks_the_least_committed_of_those_drawn() -> None:
    there = committed(0.9, 0.2, 0.5, 0.1, 0.6, 0.7, 0.8)
    policy = make_policy("sifted", random.Random(0))
    assert policy.needs == "prediction"
    drawn = Counter(tuple(sorted(names(policy.shortlist(there)))) for _ in range(200))
    assert all(len(pair) == 2 and "i0" not in pair for pair in drawn)
    assert drawn.most_common(1)[0][0] == ("i1", "i3")
    assert len(drawn) > 1, "one of seven is left out at random"
    choice = policy.choose(
        there[1:3], {"i1": prediction("i1", 7), "i2": prediction("i2", 5)}, NEWCOMER
    )
    assert names(choice.order) == ["i2", "i1"]


def test_sifted_reads_few_of_many() -> None:
    there = LazyTargets()
    assert len(make_policy("sifted:3", random.Random(0)).shortlist(there)) == 3
    assert len(there.read) == 7


def test_least_committed_asks_nobody() -> None:
    there = committed(0.9, 0.2, 0.5, 0.1)
    policy = make_policy("least_committed", random.Random(0))
    assert policy.needs == "nothing"
    order = policy.choose(policy.shortlist(there), {}, NEWCOMER).order
    assert names(order) == ["i3", "i1", "i2", "i0"]
    assert len(make_policy("least_committed:2", random.Random(0)).shortlist(there)) == 2
    ties = Counter(
        names(policy.choose(committed(0.5, 0.5), {}, NEWCOMER).order)[0] for _ in range(200)
    )
    assert min(ties.values()) > 60
