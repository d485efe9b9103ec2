"""The predictor's record of itself, under a clock of its own."""

import random
from dataclasses import dataclass, field

import pytest

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
        self.trust.finished(key, first_ms=50.0)
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
        trust.finished(f"r{number}", e2e_ms=2_500.0, waited_ms=500.0, first_ms=100.0)
    empty, full, queued = (trust.from_queue(ahead, 4) for ahead in (0, 4, 11))
    assert empty == Answer(100.0, 2_000.0, from_queue=True)
    assert full == Answer(600.0, 2_500.0, from_queue=True)
    assert queued == Answer(4_100.0, 6_000.0, from_queue=True)


def test_requests_that_went_elsewhere_or_failed_leave_no_trace() -> None:
    now_s = 0.0
    trust = Trust(clock=lambda: now_s)
    trust.answer("cancelled", 1.0, 1000.0, ahead=0, concurrency=1)
    trust.forget("cancelled")
    trust.finished("cancelled")
    trust.finished("never-asked")
    trust.answer("elsewhere", 1.0, 1000.0, ahead=0, concurrency=1)
    now_s = PENDING_EXPIRES_S + 1
    trust.finished("other", e2e_ms=5.0)
    trust.finished("elsewhere")
    assert trust.quality().count == 0


def test_the_latest_answer_counts_when_asked_twice() -> None:
    now_s = 0.0
    trust = Trust(clock=lambda: now_s)
    trust.answer("a", 1.0, 9_000.0, ahead=0, concurrency=1)
    now_s = 5.0
    trust.answer("a", 1.0, 1_000.0, ahead=0, concurrency=1)
    now_s = 6.0
    trust.finished("a")
    trust.finished("a")
    trust.answer("b", 1.0, 1_000.0, ahead=0, concurrency=1)
    now_s = 7.0
    trust.finished("b")
    assert trust.quality().count == 2
    assert trust.quality().error_p99 == pytest.approx(0.0)


def test_everything_is_bounded() -> None:
    trust = Trust(clock=lambda: 1.0)
    for number in range(PENDING_MAX + 500):
        trust.answer(f"r{number}", 1.0, 1.0, ahead=0, concurrency=1)
    for number in range(PENDING_MAX + 500):
        trust.finished(f"r{number}", e2e_ms=1.0)
    assert trust.quality().count == PENDING_MAX
    assert len(trust._errors) == LONG_RUN
    assert not trust._pending


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -5.0, 0.0])
def test_figures_that_cannot_be_are_not_counted(bad: float) -> None:
    trust = Trust(clock=lambda: 1.0)
    trust.answer("a", 1.0, 100.0, ahead=0, concurrency=0)
    trust.finished("a", e2e_ms=bad)
    trust.answer("b", bad, bad, ahead=-3, concurrency=0)
    trust.finished("b", e2e_ms=10.0)
    assert trust.quality().count in (0, 1)
    trust.finished("c", e2e_ms=10.0, waited_ms=50.0)
    assert trust.from_queue(0, 0) is not None
