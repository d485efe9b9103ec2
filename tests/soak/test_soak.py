"""The parts of `make soak`, and its short form on real processes."""

import os

import numpy as np
import pytest

from bench.soak.__main__ import Soak, run
from bench.soak.memory import Growth, rss_mib


def test_a_steady_growth_is_not_flat() -> None:
    at_s = [2.0 * n for n in range(150)]
    growing = Growth.of(at_s, [60 + 0.1 * s for s in at_s])
    assert growing.slope_mib_min == pytest.approx(6.0)
    assert growing.grown_mib == pytest.approx(29.8)
    assert not growing.flat


def test_noise_about_one_level_is_flat() -> None:
    noise = np.random.default_rng(1).normal(0, 3, 150)
    assert Growth.of([2.0 * n for n in range(150)], list(60 + noise)).flat


def test_one_sample_has_no_slope() -> None:
    with pytest.raises(ValueError, match="1 samples"):
        Growth.of([0.0], [60.0])


def test_resident_memory_of_this_process_follows_what_it_holds() -> None:
    before = rss_mib(os.getpid())
    held = bytearray(os.urandom(64 * 2**20))
    assert rss_mib(os.getpid()) - before > 48
    del held


@pytest.mark.parametrize("fault", ["slow", "error", "growth", "idle"])
def test_each_finding_alone_fails_a_soak(fault: str) -> None:
    seen = Soak(10, 1.0, done=5, memory={"nats": Growth(100.0, 0.1, 0.5)})
    assert seen.good
    if fault == "slow":
        seen.slow_consumers = 1
    elif fault == "error":
        seen.errors = {"worker_lost": 1}
    elif fault == "growth":
        seen.memory["tagger-0"] = Growth(100.0, 10.0, 50.0)
    else:
        seen.done = 0
    assert not seen.good


@pytest.mark.timeout(180)
async def test_streams_stay_open_and_nobody_is_cut_off() -> None:
    seen = await run(streams=60, length_s=8.0, warm_up_s=8.0, seed=1, time_scale=4.0)
    assert seen.open_max > 30
    assert seen.done >= 60
    assert (seen.errors, seen.slow_consumers) == ({}, 0)
    assert {name.partition("-")[0] for name in seen.memory} == {
        *("nats", "tagger", "dispatcher", "worker", "predictor")
    }
