"""The on-line fit against the simulated engine's truth, in virtual time, and against abuse."""

import random
from dataclasses import dataclass, field
from math import inf, isfinite, nan
from statistics import median

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.messages import Ended, StepTime
from predictor.fit import CLIP, OnlineFit, check_physical
from predictor.simulation import simulate
from predictor.step_time import (
    DEFAULT_PROFILE,
    LIMITS,
    PROFILES,
    StepLoad,
    scaled,
    step_ms,
)
from predictor.trust import Trust
from tests.predictor.engine_world import EngineWorld, probe_for
from workers.simulated_time import TrueStepTime

A30 = PROFILES[DEFAULT_PROFILE]
LIMITS_A30 = LIMITS[DEFAULT_PROFILE]
NOISE = 0.05


@dataclass
class Learning:
    """A fit that watches the simulated engine, and predicts newcomers' E2E with what it knows."""

    start: StepTime
    overhead_ms: float
    qps: float
    truth: StepTime = A30
    speed: float = 1.0
    stall: float = 0.0
    """Chance of a step that takes 20 times as long."""
    fit: OnlineFit = field(init=False)
    world: EngineWorld = field(init=False)

    def __post_init__(self) -> None:
        true = TrueStepTime(self.truth, overhead_ms=self.overhead_ms, noise=NOISE, seed=3)
        rng = random.Random(3)

        def next_ms(load: StepLoad) -> float:
            return true.next_ms(load) * self.speed * (20 if rng.random() < self.stall else 1)

        self.fit = OnlineFit(self.start)
        self.world = EngineWorld(LIMITS_A30, next_ms, qps=self.qps, seed=3)

    def expected(self) -> StepTime:
        """What a perfect fit would know."""
        base_ms = self.truth.base_ms + self.overhead_ms
        return scaled(msgspec.structs.replace(self.truth, base_ms=base_ms), self.speed)

    def steps(self, count: int) -> list[float]:
        """Watch so many; the errors of the fit's expectation against the true one."""
        errors = []
        for step in self.world.steps(count):
            errors.append(
                step_ms(self.fit.coefficients, step.load) / step_ms(self.expected(), step.load) - 1
            )
            self.fit.observe(step.load, step.duration_ms)
        return errors

    def newcomers(self, count: int) -> dict[str, tuple[float, float, float]]:
        """By key: E2E as predicted by the fit and by the truth, and as it is if nobody comes."""
        seen: dict[str, tuple[float, float, float]] = {}
        while len(seen) < count:
            newest = self.world.arrive()
            if newest is not None:
                states = self.world.states(without=newest.key)
                by_fit, by_truth = (
                    simulate(LIMITS_A30, known, states, probe_for(newest), steps_max=20_000).e2e_ms
                    for known in (self.fit.coefficients, self.expected())
                )
                undisturbed_ms = self.world.undisturbed_ms(newest.key)
                seen[newest.key] = (by_fit, by_truth, undisturbed_ms)
            self.steps(1)
        while not seen.keys() <= self.world.finished_ms.keys():
            self.steps(1)
        return seen

    def took_ms(self, key: str) -> float:
        return self.world.finished_ms[key] - self.world.entered_ms[key]


def median_error(pairs: list[tuple[float, float]]) -> float:
    return median(abs(predicted / actual - 1) for predicted, actual in pairs)


@pytest.mark.parametrize("factor", [0.5, 2.0])
@pytest.mark.parametrize("overhead_ms", [5.0, 10.0])
def test_500_steps_mend_a_profile_that_is_a_factor_of_2_off(
    factor: float, overhead_ms: float
) -> None:
    learning = Learning(scaled(A30, factor), overhead_ms, qps=1.0)
    learning.steps(500)
    seen = learning.newcomers(40)
    undisturbed = [(by_fit, alone) for by_fit, _, alone in seen.values()]
    live = [(by_fit, learning.took_ms(key)) for key, (by_fit, _, _) in seen.items()]
    assert median_error(undisturbed) < 0.015
    # Whoever comes later is not known to anybody, and slows things down.
    assert median_error(live) < 0.05


def test_under_high_load_what_is_left_is_those_yet_to_come() -> None:
    learning = Learning(scaled(A30, 0.5), 7.0, qps=2.2)
    learning.steps(500)
    trust = Trust(clock=lambda: now_s)
    now_s = 0.0
    seen = learning.newcomers(80)
    for key, (by_fit, _, _) in seen.items():
        trust.answer(key, 1.0, by_fit, ahead=1, concurrency=48)
    now_s = 1_000.0
    for key in seen:
        trust.ended(Ended(key, "stop", ttft_ms=1.0, e2e_ms=learning.took_ms(key)))
    assert median_error([(by_fit, alone) for by_fit, _, alone in seen.values()]) < 0.015
    by_fit = median_error([(fit, learning.took_ms(key)) for key, (fit, _, _) in seen.items()])
    by_truth = median_error([(true, learning.took_ms(key)) for key, (_, true, _) in seen.items()])
    assert by_truth > 0.05, "the bound that not even the truth keeps"
    assert by_fit == pytest.approx(by_truth, abs=0.015)
    corrected = [(fit * trust.factor(), learning.took_ms(key)) for key, (fit, _, _) in seen.items()]
    assert median_error(corrected) < 0.05


@pytest.mark.parametrize("change", [1.5, 0.6])
def test_a_change_of_speed_is_followed(change: float) -> None:
    learning = Learning(scaled(A30, 0.5), 7.0, qps=0.9)
    learning.steps(500)
    assert learning.fit.changes == 0
    learning.speed = change
    errors = learning.steps(300)
    assert learning.fit.changes >= 1
    assert median(map(abs, errors[20:60])) < 0.05
    assert median(map(abs, errors[60:])) < 0.03
    seen = learning.newcomers(30)
    assert median_error([(by_fit, alone) for by_fit, _, alone in seen.values()]) < 0.02


def test_a_steady_engine_is_not_taken_to_change() -> None:
    learning = Learning(scaled(A30, 0.5), 7.0, qps=1.5)
    learning.steps(6_000)
    assert learning.fit.changes == 0
    assert max(map(abs, learning.steps(500))) < 0.1
    assert learning.fit.noise == pytest.approx(NOISE, rel=0.3)
    assert learning.fit.error == pytest.approx(0.674 * NOISE, rel=0.4)
    assert learning.fit.steps == 6_500


@pytest.mark.parametrize(
    "start",
    [
        msgspec.structs.replace(A30, flat_ms=A30.flat_ms * 2, token_ms=A30.token_ms / 2),
        msgspec.structs.replace(A30, flat_ms=A30.flat_ms / 2, token_ms=A30.token_ms * 2),
        msgspec.structs.replace(A30, flat_ms=0.0),
        msgspec.structs.replace(A30, token_ms=0.0),
        msgspec.structs.replace(A30, context_ms=A30.context_ms * 10),
        PROFILES["h100-llama-2-7b"],
    ],
    ids=["knee x 4", "knee / 4", "no flat", "no slope", "context x 10", "another GPU"],
)
def test_the_shape_is_learnt_too(start: StepTime) -> None:
    learning = Learning(start, 7.0, qps=1.5)
    learning.steps(2_000)
    for tokens in (64, 128, 256, 512):
        load = StepLoad(tokens, tokens * tokens / 2, 30 * 400, 31)
        assert step_ms(learning.fit.coefficients, load) == pytest.approx(
            step_ms(learning.expected(), load), rel=0.08
        )


def test_decode_steps_alone_teach_the_speed_of_prefill() -> None:
    fit = OnlineFit(scaled(A30, 0.5))
    rng = random.Random(1)
    for _ in range(300):
        n = rng.randint(1, 48)
        load = StepLoad(n, 0.0, n * rng.randint(50, 700), n)
        fit.observe(load, step_ms(A30, load) * rng.lognormvariate(0, NOISE))
    prefill = StepLoad(512, 512 * 256, 0, 1)
    assert step_ms(fit.coefficients, prefill) == pytest.approx(step_ms(A30, prefill), rel=0.25)


def test_stalls_are_no_step_times() -> None:
    learning = Learning(scaled(A30, 0.5), 7.0, qps=1.5, stall=0.01)
    learning.steps(500)
    assert median(map(abs, learning.steps(1_000))) < 0.03
    before = step_ms(learning.fit.coefficients, StepLoad(30, 0, 9_000, 30))
    learning.fit.observe(StepLoad(30, 0, 9_000, 30), before * 1_000)
    after = step_ms(learning.fit.coefficients, StepLoad(30, 0, 9_000, 30))
    assert after / before - 1 < CLIP * NOISE


@pytest.mark.parametrize(
    ("load", "duration_ms"),
    [
        (StepLoad(), 10.0),
        (StepLoad(tokens=-5, sequences=1), 10.0),
        (StepLoad(tokens=5, prefill_work=nan, sequences=1), 10.0),
        (StepLoad(tokens=5, prefill_work=inf, sequences=1), 10.0),
        (StepLoad(tokens=5, prefill_work=-1.0, sequences=1), 10.0),
        (StepLoad(tokens=5, context_tokens=-1, sequences=1), 10.0),
        (StepLoad(tokens=5, sequences=-1), 10.0),
        (StepLoad(tokens=5, sequences=5), 0.0),
        (StepLoad(tokens=5, sequences=5), -1.0),
        (StepLoad(tokens=5, sequences=5), nan),
        (StepLoad(tokens=5, sequences=5), inf),
        (StepLoad(tokens=5, sequences=5), 1e9),
    ],
)
def test_steps_that_cannot_be_teach_nothing(load: StepLoad, duration_ms: float) -> None:
    fit = OnlineFit(A30)
    before = fit.coefficients
    assert not fit.observe(load, duration_ms)
    assert fit.coefficients == before
    assert fit.steps == 0 and fit.error == 0


@pytest.mark.parametrize("value", [-1.0, nan, inf])
@pytest.mark.parametrize("name", StepTime.__struct_fields__)
def test_starts_of_no_engine_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        OnlineFit(msgspec.structs.replace(A30, **{name: value}))


def test_a_step_without_any_cost_is_no_start() -> None:
    with pytest.raises(ValueError, match="empty step"):
        OnlineFit(scaled(A30, 0.0))


loads = st.builds(
    StepLoad,
    tokens=st.integers(1, 100_000),
    prefill_work=st.floats(0, 1e10),
    context_tokens=st.integers(0, 10**8),
    sequences=st.integers(0, 10_000),
)


@settings(deadline=None)
@given(
    steps=st.lists(st.tuples(loads, st.floats(0.001, 600_000)), max_size=80),
    start=st.sampled_from([*PROFILES.values(), scaled(A30, 1e-3), scaled(A30, 1e3)]),
)
def test_whatever_comes_the_coefficients_stay_physical(
    steps: list[tuple[StepLoad, float]], start: StepTime
) -> None:
    fit = OnlineFit(start)
    for load, duration_ms in steps:
        assert fit.observe(load, duration_ms)
        c = fit.coefficients
        values = [getattr(c, name) for name in c.__struct_fields__]
        assert all(isfinite(value) and value >= 0 for value in values)
        assert isfinite(fit.error)


def test_a_hundred_thousand_equal_steps_leave_the_rest_alone() -> None:
    fit = OnlineFit(A30)
    load = StepLoad(8, 0, 3_000, 8)
    for _ in range(100_000):
        fit.observe(load, 30.0)
    assert step_ms(fit.coefficients, load) == pytest.approx(30.0, rel=1e-3)
    check_physical(fit.coefficients)
    assert fit.coefficients.token_ms == pytest.approx(A30.token_ms, rel=0.5)
    covariance = fit._covariance
    assert all(0 < covariance[i][i] < 100 for i in range(6))
    for i in range(6):
        for j in range(6):
            assert covariance[i][j] == pytest.approx(covariance[j][i])
            assert covariance[i][j] ** 2 <= covariance[i][i] * covariance[j][j] * 1.000001
    for n in range(1, 48):  # and it is still able to learn
        other = StepLoad(n, 0, 400 * n, n)
        fit.observe(other, step_ms(A30, other))
    assert step_ms(fit.coefficients, load) == pytest.approx(step_ms(A30, load), rel=0.1)
