"""The estimator's time budget: nobody is held up, and what is late is marked."""

import asyncio
import threading
import time

import pytest

from pipeline.estimates import RunningMedian
from tagger.model import LengthModel
from tagger.service import ModelEstimator, TaggerSettings


class SlowModel:
    """As LengthModel, but it takes its time, and counts."""

    name = "slow"

    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s
        self.computed = 0
        self.lock = threading.Lock()

    def estimate_one(self, prompt: str) -> tuple[int, tuple[float, float, float]]:
        time.sleep(self.takes_s)
        with self.lock:
            self.computed += 1
        return 7, (1.0, 2.0, 3.0)


class BrokenModel(SlowModel):
    def estimate_one(self, prompt: str) -> tuple[int, tuple[float, float, float]]:
        raise RuntimeError("broken")


def estimator(model: SlowModel | LengthModel, budget_ms: float) -> ModelEstimator:
    return ModelEstimator(
        model,  # type: ignore[arg-type]  # as far as it is used
        RunningMedian(),
        TaggerSettings(budget_ms=budget_ms),
    )


async def test_in_time_the_model_speaks() -> None:
    made = estimator(SlowModel(0.0), 2000)
    estimate = await made.estimate("hello")
    assert (estimate.prompt_tokens, estimate.length.p50, estimate.length.source) == (7, 2, "slow")
    made.close()


async def test_past_the_budget_the_median_serves_and_says_so() -> None:
    made = estimator(SlowModel(0.5), 30)
    started = time.perf_counter()
    estimate = await made.estimate("hello")
    assert time.perf_counter() - started < 0.4
    assert estimate.length.source == "median_late"
    made.close()


async def test_what_waited_too_long_is_not_computed_any_more() -> None:
    model = SlowModel(0.2)
    made = estimator(model, 100)
    estimates = await asyncio.gather(*(made.estimate("hello") for _ in range(10)))
    assert {estimate.length.source for estimate in estimates} == {"median_late"}
    await asyncio.sleep(0.4)
    assert model.computed == 1
    made.close()


async def test_a_broken_model_does_not_stop_requests() -> None:
    made = estimator(BrokenModel(0.0), 2000)
    assert (await made.estimate("hello")).length.source == "median_late"
    made.close()


@pytest.mark.parametrize("prompt", ["", "🦊" * 1000, "\ud800", "x" * 1_000_000, "\x00"])
async def test_the_real_model_takes_any_prompt(prompt: str) -> None:
    model = LengthModel.load()
    made = estimator(model, 10_000)
    assert (await made.estimate(prompt)).length.source == model.name
    made.close()
