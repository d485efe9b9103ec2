"""Free KV blocks over time, and how evenly they lie."""

import pytest

from evaluation.world.cluster import simulate
from evaluation.world.settings import ClusterSettings, instance
from tests.evaluation.world.arrivals import arrival


def test_one_busy_and_one_idle_instance() -> None:
    settings = ClusterSettings(instances=(instance(noise=0.0),) * 2, policy="round_robin")
    # One long request, and another ten seconds later: in between only the first instance works.
    outcome = simulate(settings, [arrival(0.0, 1_600, 1_500), arrival(10_000.0, 16, 2)])
    blocks = settings.instances[0].limits.kv_blocks
    assert 1 - 110 / (2 * blocks) > outcome.kv_free > 1 - 200 / (2 * blocks)
    # Of two shares that differ by d the standard deviation is d / 2.
    assert outcome.kv_free_spread == pytest.approx(1 - outcome.kv_free)
    assert outcome.summary()["kv_free"] == outcome.kv_free


def test_a_run_shorter_than_the_time_between_looks_has_one() -> None:
    outcome = simulate(ClusterSettings(instances=(instance(),)), [arrival(0.0, 16, 2)])
    assert outcome.kv_free == 1.0 and outcome.kv_free_spread == 0.0
