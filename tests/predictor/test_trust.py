"""The predictor's record of itself, under a clock of its own."""

import random
from dataclasses import dataclass, field
from math import log

import pytest

from pipeline.messages import Ended
from predictor.trust import (
    ERROR_FINE,
    FACTOR_MAX,
    JUDGED,
    JUDGED_MIN,
    LONG_RUN,
    PENDING_EXPIRES_S,
    PENDING_MAX,
    RECENT,
    Answer,
    Trust,
)


def ended(
    key: str, e2e_ms: float, *, ttft_ms: float = 1.0, waited_ms: float = 0.0, outcome: str = "stop"
) -> Ended:
    return Ended(key, outcome, waited_ms, min(ttft_ms, e2e_ms), e2e_ms)


@dataclass
class World:
    """One request after another, each alone on an instance that runs four."""

    now_s: float = 0.0
    trust: Trust = field(init=False)
    rng: random.Random = field(default_factory=lambda: random.Random(5))
    count: int = 0

    def __post_init__(self) -> None:
        self.trust = Trust(clock=lambda: self.now_s)

    def request(self, actual_ms: float, predicted_ms: float) -> Answer:
        self.count += 1
        key = f"r{self.count}"
        answer = self.trust.answer(key, 10.0, predicted_ms, ahead=0, concurrency=4)
        self.now_s += actual_ms / 1000
        self.trust.ended(ended(key, actual_ms, ttft_ms=min(50.0, actual_ms)))
        return answer

    def requests(self, count: int, *, off: float, noise: float = 0.0, sigma: float = 0.7) -> None:
        """The truth is log-normal about a second, the prediction `off` times as much."""
        for _ in range(count):
            actual_ms = 1000 * self.rng.lognormvariate(0, sigma)
            self.request(actual_ms, actual_ms * off * self.rng.lognormvariate(0, noise))


def test_nothing_was_seen_yet() -> None:
    trust = Trust()
    assert trust.trusted and trust.spread() is None and trust.factor() == 1.0
    assert trust.quality().count == 0
    assert trust.from_queue(5, 2) is None
    assert trust.answer("a", 1.0, 2.0, ahead=5, concurrency=2) == Answer(1.0, 2.0)


def test_error_bias_and_spread_of_known_predictions() -> None:
    world = World()
    world.requests(200, off=0.8, noise=0.1)
    quality = world.trust.quality()
    assert quality.count == 200
    assert quality.bias == pytest.approx(0.223, abs=0.03)  # log(1 / 0.8)
    assert quality.error_p50 == pytest.approx(0.223, abs=0.03)
    assert quality.error_p90 == pytest.approx(0.223 + 0.128, abs=0.04)
    assert quality.error_p50 < quality.error_p90 < quality.error_p99
    assert abs(quality.drift) < 0.04
    assert quality.spread == pytest.approx(1.4826 * 0.223, rel=0.2)
    assert world.trust.factor() == pytest.approx(1.25, rel=0.03)
    assert world.trust.trusted


def test_drift_is_the_latest_against_the_long_run() -> None:
    world = World()
    world.requests(500, off=1.0)
    world.requests(RECENT, off=0.5)
    assert world.trust.quality().drift == pytest.approx(0.693, abs=0.01)
    assert world.trust.factor() == pytest.approx(FACTOR_MAX)


def test_a_predictor_that_is_worse_than_counting_is_not_trusted_until_it_is_better() -> None:
    world = World()
    world.requests(100, off=1.0, noise=0.1)
    assert world.trust.trusted
    world.requests(JUDGED, off=6.0)
    assert world.trust.quality().verdicts == 1
    answer = world.request(1000.0, 6000.0)
    assert answer.from_queue
    assert answer.e2e_ms == pytest.approx(1280, rel=0.3)  # the mean that was seen: e^(0.7²/2)
    assert answer.ttft_ms == pytest.approx(50.0)
    world.requests(JUDGED, off=1.0, noise=0.1)
    assert not world.request(1000.0, 1000.0).from_queue
    assert world.trust.quality().verdicts == 2


@pytest.mark.parametrize(("noise", "most"), [(0.5, 0), (0.65, 4), (1.2, 1)])
def test_the_verdict_does_not_flutter(noise: float, most: int) -> None:
    # The plain estimate's errors have a sigma of 0.7 here.
    for seed in range(4):
        world = World(rng=random.Random(seed))
        world.requests(1_000, off=1.0, noise=noise)
        assert world.trust.quality().verdicts <= most
        assert world.trust.trusted is (noise < 0.7)


def test_a_small_error_is_trusted_however_good_the_plain_estimate_is() -> None:
    world = World()
    world.requests(200, off=1 + ERROR_FINE / 2, sigma=0.0)
    assert world.trust.quality().plain_error_p50 == pytest.approx(0, abs=1e-6)
    assert world.trust.trusted


def test_few_requests_judge_nothing() -> None:
    world = World()
    world.requests(JUDGED_MIN, off=50.0)  # the first had no plain estimate beside it
    assert world.trust.quality().trusted
    world.requests(1, off=50.0)
    assert not world.trust.quality().trusted


def test_the_plain_estimate_counts_rounds() -> None:
    trust = Trust(clock=lambda: 0.0)
    for number in range(10):
        trust.ended(ended(f"r{number}", 2_500.0, ttft_ms=600.0, waited_ms=500.0))
    empty, full, queued = (trust.from_queue(ahead, 4) for ahead in (0, 4, 11))
    assert empty == Answer(100.0, 2_000.0, from_queue=True)
    assert full == Answer(600.0, 2_500.0, from_queue=True)
    assert queued == Answer(4_100.0, 6_000.0, from_queue=True)


@pytest.mark.parametrize("outcome", ["cancelled", "failed", "handed_back", "not yet invented"])
def test_what_did_not_run_to_its_end_leaves_no_trace(outcome: str) -> None:
    now_s = 0.0
    trust = Trust(clock=lambda: now_s)
    trust.answer("a", 1.0, 1000.0, ahead=0, concurrency=1)
    now_s = 9.0
    trust.ended(ended("a", 9_000.0, outcome=outcome))
    assert trust.quality().count == 0
    assert trust.from_queue(0, 1) is None
    trust.ended(ended("a", 9_000.0))
    assert trust.quality().count == 0, "it was forgotten"


@pytest.mark.parametrize("outcome", ["stop", "length"])
def test_what_ran_to_its_end_counts_also_if_its_limit_of_tokens_was_the_end(outcome: str) -> None:
    now_s = 0.0
    trust = Trust(clock=lambda: now_s)
    for key in ("a", "b"):
        trust.answer(key, 10.0, 1000.0, ahead=0, concurrency=1)
    now_s = 9.0
    for key in ("a", "b"):
        trust.ended(ended(key, 2_000.0, ttft_ms=40.0, outcome=outcome))
    quality = trust.quality()
    assert quality.count == 2
    assert quality.bias == pytest.approx(log(2))
    assert quality.ttft_bias == pytest.approx(log(4))
    assert quality.ttft_error_p50 == pytest.approx(log(4))


def test_the_workers_figures_count_not_when_they_were_told() -> None:
    now_s = 0.0
    trust = Trust(clock=lambda: now_s)
    for key in ("a", "b"):
        trust.answer(key, 1.0, 1_000.0, ahead=0, concurrency=1)
    now_s = 1.2  # told 200 ms after the end
    for key in ("a", "b"):
        trust.ended(ended(key, 1_000.0))
    assert trust.quality().error_p99 == pytest.approx(0.0)


def test_a_wall_clock_that_is_off_cannot_claim_more_than_has_passed_here() -> None:
    now_s = 0.0
    trust = Trust(clock=lambda: now_s)
    for key in ("a", "b"):
        trust.answer(key, 1.0, 1_000.0, ahead=0, concurrency=1)
    now_s = 1.0
    for key in ("a", "b"):
        trust.ended(ended(key, 3_600_000.0))
    assert trust.quality().error_p99 == pytest.approx(0.0)


def test_requests_that_went_elsewhere_leave_no_trace() -> None:
    now_s = 0.0
    trust = Trust(clock=lambda: now_s)
    trust.ended(ended("never-asked", 5.0))
    trust.answer("elsewhere", 1.0, 1000.0, ahead=0, concurrency=1)
    now_s = PENDING_EXPIRES_S + 1
    trust.ended(ended("other", 5.0))
    trust.ended(ended("elsewhere", 5.0))
    assert trust.quality().count == 0


def test_the_latest_answer_counts_when_asked_twice() -> None:
    now_s = 0.0
    trust = Trust(clock=lambda: now_s)
    trust.answer("a", 1.0, 9_000.0, ahead=0, concurrency=1)
    trust.answer("a", 1.0, 1_000.0, ahead=0, concurrency=1)
    trust.answer("b", 1.0, 1_000.0, ahead=0, concurrency=1)
    now_s = 7.0
    trust.ended(ended("a", 1_000.0))
    trust.ended(ended("a", 1_000.0))
    trust.ended(ended("b", 1_000.0))
    assert trust.quality().count == 2
    assert trust.quality().error_p99 == pytest.approx(0.0)


def test_everything_is_bounded() -> None:
    now_s = 0.0
    trust = Trust(clock=lambda: now_s)
    for number in range(PENDING_MAX + 500):
        trust.answer(f"r{number}", 1.0, 1.0, ahead=0, concurrency=1)
    now_s = 1.0
    for number in range(PENDING_MAX + 500):
        trust.ended(ended(f"r{number}", 1.0))
    assert trust.quality().count == PENDING_MAX
    assert len(trust._errors) == len(trust._first_errors) == LONG_RUN
    assert not trust._pending


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "bad",
    [
        Ended("a", "stop", 0.0, 1.0, NAN),
        Ended("a", "stop", 0.0, 1.0, INF),
        Ended("a", "stop", 0.0, 1.0, -5.0),
        Ended("a", "stop", 0.0, 1.0, 0.0),
        Ended("a", "stop", 0.0, None, 10.0),
        Ended("a", "stop", 0.0, 20.0, 10.0),
        Ended("a", "stop", 0.0, -1.0, 10.0),
        Ended("a", "stop", 0.0, NAN, 10.0),
        Ended("a", "stop", -1.0, 1.0, 10.0),
        Ended("a", "stop", 5.0, 1.0, 10.0),
        Ended("a", "stop", NAN, 1.0, 10.0),
    ],
    ids=str,
)
def test_figures_that_cannot_be_are_not_counted(bad: Ended) -> None:
    now_s = 0.0
    trust = Trust(clock=lambda: now_s)
    trust.answer("a", 1.0, 100.0, ahead=0, concurrency=0)
    now_s = 1.0
    trust.ended(bad)
    assert trust.quality().count == 0
    assert trust.from_queue(0, 0) is None


@pytest.mark.parametrize("bad", [NAN, INF])
def test_answers_that_cannot_be_are_not_judged(bad: float) -> None:
    now_s = 0.0
    trust = Trust(clock=lambda: now_s)
    trust.answer("a", 1.0, bad, ahead=-3, concurrency=0)
    trust.answer("b", bad, 1.0, ahead=-3, concurrency=0)
    now_s = 1.0
    trust.ended(ended("a", 10.0))
    trust.ended(ended("b", 10.0))
    assert trust.quality().count == 0
