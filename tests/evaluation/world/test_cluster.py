"""The simulated cluster: nothing is lost, nothing is invented, everything can be repeated."""

from dataclasses import replace

import numpy as np
import pytest

from evaluation.world.cluster import Cluster, simulate
from evaluation.world.dispatcher import Targets
from evaluation.world.outcome import Outcome
from evaluation.world.settings import ClusterSettings, Delays, MigrationSettings, instance
from pipeline.errors import UsageError
from tests.evaluation.world.arrivals import arrival, arrivals, small

ASKING_AND_NOT = [
    "random", "round_robin", "min_qpm", "least_outstanding:2", "llumnix", "power_of_two",
]  # fmt: skip
FOUR_SMALL = ClusterSettings(instances=(small(),) * 4)


def columns(outcome: Outcome) -> list[list[float]]:
    return [
        list(outcome.ttft_ms), list(outcome.e2e_ms), list(outcome.instance),
        list(outcome.preemptions),
    ]  # fmt: skip


@pytest.mark.parametrize("rules", ["vllm", "vllm-v0"])
@pytest.mark.parametrize("policy", ASKING_AND_NOT)
def test_every_request_finishes_once_and_all_blocks_come_back(policy: str, rules: str) -> None:
    settings = replace(FOUR_SMALL, policy=policy, instances=(small(rules=rules),) * 2)
    cluster = Cluster(settings, arrivals(40, rate=6))
    outcome = cluster.run()
    assert len(outcome.e2e_ms) == 40
    assert (outcome.ttft_ms > 0).all() and (outcome.e2e_ms >= outcome.ttft_ms).all()
    assert outcome.preemptions_total > 0, "the pool is too large to test anything"
    assert outcome.preemptions_total == sum(i.preemptions for i in cluster.instances)
    for there in cluster.instances:
        assert len(there.scheduler) == 0 and there.idle and not there.inbox
        assert there.scheduler.blocks_free == there.settings.limits.kv_blocks
    tokens = sum(there.tokens_generated for there in cluster.instances)
    assert tokens == outcome.response_tokens.sum()


@pytest.mark.parametrize("policy", ASKING_AND_NOT)
def test_a_seed_says_everything(policy: str) -> None:
    settings = replace(FOUR_SMALL, policy=policy, dispatchers=2)
    there = arrivals(30, rate=6)
    assert columns(simulate(settings, there)) == columns(simulate(settings, there))
    other = simulate(replace(settings, seed=1), there)
    assert columns(other) != columns(simulate(settings, there))


def test_a_request_alone_takes_what_the_formula_says() -> None:
    quiet = instance(overhead_ms=2.0, noise=0.0)
    settings = ClusterSettings(instances=(quiet,), policy="round_robin")
    outcome = simulate(settings, [arrival(0, 1300, 200)])
    delays = settings.delays
    routing_ms = delays.tagger_ms + delays.hop_ms
    assert outcome.e2e_ms[0] == pytest.approx(outcome.alone_ms[0] + routing_ms)


def test_probes_take_their_time_and_only_where_there_are_any() -> None:
    quiet = instance(noise=0.0)
    ttft = {
        policy: simulate(
            ClusterSettings(instances=(quiet,) * 2, policy=policy, delays=Delays(probe_ms=500.0)),
            [arrival(0, 100, 5)],
        ).ttft_ms[0]
        for policy in ("round_robin", "power_of_two")
    }
    assert ttft["power_of_two"] - ttft["round_robin"] == pytest.approx(500.0)


def test_the_predictor_does_not_see_true_lengths() -> None:
    """The same estimates for other truths: the first decisions are the same."""
    short = arrivals(40, rate=1000)
    longer = [replace(there, response_tokens=there.response_tokens + 300) for there in short]
    placed = [
        list(simulate(ClusterSettings(instances=(instance(),) * 4), there).instance)
        for there in (short, longer)
    ]
    assert placed[0] == placed[1]


def test_prediction_beats_chance_under_memory_pressure() -> None:
    there = arrivals(120, rate=2.0, seed=3)
    by_chance = simulate(replace(FOUR_SMALL, policy="random"), there).summary()
    predicted = simulate(FOUR_SMALL, there).summary()
    assert predicted["ttft_mean_ms"] < 0.7 * by_chance["ttft_mean_ms"]


def test_an_inbox_holds_what_the_engine_does_not_take() -> None:
    settings = ClusterSettings(instances=(small(),), policy="random")
    cluster = Cluster(settings, arrivals(60, rate=1000))
    seen = 0
    cluster.start()
    while cluster.agenda.step():
        seen = max(seen, len(cluster.instances[0].inbox))
        assert len(cluster.instances[0].scheduler) <= 10
    assert seen > 30


def test_noise_on_costs_changes_placements_and_loses_nothing() -> None:
    there = arrivals(40, rate=4)
    exact = simulate(FOUR_SMALL, there)
    noisy = simulate(replace(FOUR_SMALL, latency_noise=1.0), there)
    assert list(exact.instance) != list(noisy.instance)
    assert len(noisy.e2e_ms) == 40


def test_only_the_candidates_are_looked_at_among_a_thousand() -> None:
    looked_at: list[int] = []

    class Counts(list[int]):
        def __getitem__(self, place: object) -> int:  # type: ignore[override]
            assert isinstance(place, int)
            looked_at.append(place)
            return 0

    targets = Targets(
        [f"i{n}" for n in range(1000)], Counts([0] * 1000), [0.0] * 1000, [instance().limits] * 1000
    )
    cluster = Cluster(ClusterSettings(instances=(instance(),) * 3), [])
    shortlist = cluster.dispatchers[0].policy.shortlist(targets)
    assert len(shortlist) == 2 and len(looked_at) <= 6
    assert [target.instance for target in targets[1:3]] == ["i1", "i2"]


def test_dispatchers_count_each_others_requests() -> None:
    settings = ClusterSettings(
        instances=(instance(),) * 2, policy="least_outstanding", dispatchers=2
    )
    outcome = simulate(settings, [arrival(n * 100.0, 20, 200) for n in range(6)])
    assert sorted(outcome.instance) == [0, 0, 0, 1, 1, 1]


def test_live_migration_moves_requests_and_loses_none() -> None:
    settings = replace(
        FOUR_SMALL, policy="random", migration=MigrationSettings(every_ms=100, link_gb_s=1.0)
    )
    cluster = Cluster(settings, arrivals(60, rate=6))
    outcome = cluster.run()
    assert outcome.migrations_total > 5
    assert (outcome.e2e_ms > 0).all()
    assert all(len(there.scheduler) == 0 for there in cluster.instances)
    assert sum(there.tokens_generated for there in cluster.instances) == (
        outcome.response_tokens.sum()
    )


def test_clones_live_what_the_original_lives_if_nobody_else_comes() -> None:
    quiet = instance(overhead_ms=2.0, noise=0.0)
    settings = ClusterSettings(instances=(quiet,) * 2, clone_every=1)
    there = [arrival(n * 40.0, 30 + n, 100 + n) for n in range(6)]
    outcome = simulate(settings, there)
    last = [lived for lived in outcome.lived if lived.job == 5 and lived.chosen]
    assert len(outcome.lived) == 12 and len(last) == 1
    actual_ms = there[5].at_ms + outcome.e2e_ms[5] - outcome.decided_at_ms[5]
    # The copy begins at the decision, the request itself one hop later.
    assert last[0].e2e_ms == pytest.approx(actual_ms, abs=80)
    assert {lived.chosen for lived in outcome.lived} == {True, False}


def test_the_summary_by_hand() -> None:
    outcome = simulate(ClusterSettings(policy="round_robin"), arrivals(50, rate=5))
    summary = outcome.summary()
    assert summary["ttft_mean_ms"] == pytest.approx(sum(outcome.ttft_ms) / 50)
    assert summary["e2e_p99_ms"] == pytest.approx(np.percentile(outcome.e2e_ms, 99))
    assert summary["slowdown_p99"] > 1
    assert "e2e_error_median" not in summary and summary["probes"] == 0
    assert simulate(ClusterSettings(), arrivals(50, rate=5)).summary()["e2e_error_median"] > 0


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"instances": ()}, "instances"),
        ({"dispatchers": 0}, "dispatchers"),
        ({"latency_noise": -1.0}, "latency_noise"),
        ({"clone_every": -1}, "clone_every"),
    ],
)
def test_settings_name_what_is_wrong(fields: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        ClusterSettings(**fields)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="profile"):
        instance("a31")
    with pytest.raises(UsageError, match="link_gb_s"):
        MigrationSettings(link_gb_s=0)
