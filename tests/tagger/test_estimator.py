"""The tagger's estimators: nobody is held up, and what is late is marked."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.estimates import PRIOR_TOKENS, RunningMedian, rough_prompt_tokens
from pipeline.messages import ChatMessage, Request
from tagger.estimator import ModelEstimator
from tagger.live_error import LiveError
from tagger.model import LengthModel
from tagger.runner import ModelRunner
from tagger.service import TaggerSettings, make_estimator
from tagger.token_counts import TokenCounts
from tests.tagger.questions import BrokenModel, FakeModel, ended, question


def estimator(
    model: FakeModel | LengthModel, wait_ms: float = 2_000, remembered_max: int = 100
) -> ModelEstimator:
    return ModelEstimator(
        model.name,
        ModelRunner(model),
        TokenCounts({}, rough_prompt_tokens),
        RunningMedian(),
        LiveError(model.name),
        wait_ms=wait_ms,
        remembered_max=remembered_max,
    )


async def test_in_time_the_model_speaks() -> None:
    made = estimator(FakeModel())
    estimate = await made.estimate(question("four"))
    assert (estimate.prompt_tokens, estimate.length.p50, estimate.length.source) == (11, 6, "fake")
    made.close()


async def test_past_its_wait_the_median_serves_and_says_so() -> None:
    made = estimator(FakeModel(0.5), wait_ms=30)
    first = asyncio.create_task(made.estimate(question("first")))
    await asyncio.sleep(0.01)
    started = time.perf_counter()
    late = await made.estimate(question("second"))
    assert time.perf_counter() - started < 0.4
    assert late.length.source == "median_late"
    assert late.length.p50 == PRIOR_TOKENS[1]
    assert (await first).length.source == "fake", "who has begun is waited for"
    made.close()


async def test_a_broken_model_does_not_stop_requests() -> None:
    made = estimator(BrokenModel())
    assert (await made.estimate(question("hello"))).length.source == "median_broken"
    made.close()


async def test_a_length_that_is_known_asks_no_model() -> None:
    model = FakeModel()
    made = estimator(model)
    estimate = await made.estimate(question("hello", ignore_eos=True, max_tokens=40))
    assert (estimate.length.p10, estimate.length.p90) == (40, 40)
    assert estimate.length.source == "ignore_eos"
    assert estimate.prompt_tokens == 1
    assert model.computed == 0
    made.close()


async def test_ten_thousand_identical_prompts_are_one_computation() -> None:
    model = FakeModel(0.01)
    made = estimator(model)
    asked = (made.estimate(question("the same")) for _ in range(10_000))
    estimates = await asyncio.gather(*asked)
    assert {estimate.length.p50 for estimate in estimates} == {10.0}
    assert model.computed == 1
    assert (await made.estimate(question("the same"))).length.p50 == 10.0
    assert model.computed == 1
    made.close()


async def test_what_is_remembered_is_bounded_and_the_oldest_goes() -> None:
    model = FakeModel()
    made = estimator(model, remembered_max=2)
    for prompt in ("a", "bb", "a", "ccc", "a", "bb"):
        await made.estimate(question(prompt))
    assert model.computed == 4
    made.close()


async def test_a_chat_and_a_prompt_with_the_same_text_are_two_questions() -> None:
    model = FakeModel()
    made = estimator(model)
    messages = [ChatMessage(role="user", content="hi")]
    chat = question("user: hi")
    chat = type(chat)(Request(id="r", messages=messages), "user: hi", "default")
    assert (await made.estimate(chat)).length.p50 == 4, "of the last message alone"
    assert (await made.estimate(question("user: hi"))).length.p50 == 10
    made.close()


async def test_an_asker_that_is_cancelled_takes_the_answer_from_nobody() -> None:
    made = estimator(FakeModel(0.1))
    leaving = asyncio.create_task(made.estimate(question("same")))
    staying = asyncio.create_task(made.estimate(question("same")))
    await asyncio.sleep(0.02)
    leaving.cancel()
    assert (await staying).length.source == "fake"
    made.close()


async def test_what_answers_taught_is_applied_and_told() -> None:
    model = FakeModel()
    live = LiveError("fake")
    made = ModelEstimator(
        "fake",
        ModelRunner(model),
        TokenCounts({}, rough_prompt_tokens),
        RunningMedian(),
        live,
        wait_ms=2_000,
    )
    for _ in range(600):
        live.finished(ended(200, 100, model="llama"))
    length = (await made.estimate(question("four", model="llama"))).length
    assert length.correction == pytest.approx(2, rel=0.05)
    assert length.p50 == pytest.approx(6 * length.correction)
    assert (await made.estimate(question("four", model="other"))).length.p50 == 6
    made.close()


@pytest.mark.parametrize("prompt", ["", "x", "🦊" * 1000, "\ud800", "x" * 1_000_000, "\x00" * 9])
async def test_the_real_model_takes_any_prompt(prompt: str) -> None:
    model = LengthModel.load()
    made = estimator(model)
    estimate = await made.estimate(question(prompt))
    assert estimate.length.source == model.name
    assert estimate.prompt_tokens >= 1
    again = await estimator(model).estimate(question(prompt))
    assert again.length == estimate.length, "the same prompt, the same estimate"
    made.close()


# ------------------------------------------------------------------ which estimator


def made_of(settings: TaggerSettings) -> tuple[object, dict[str, str]]:
    median = RunningMedian()
    for _ in range(40):
        median.finished(ended(90, None))
    made, what, _ = make_estimator(settings, median)
    return made, what


@pytest.mark.parametrize(
    ("settings", "source", "p50"),
    [
        (TaggerSettings(estimator="constant"), "median", 90),
        (TaggerSettings(estimator="length"), "prompt_length", 225),
        (TaggerSettings(model=Path("no/such/folder")), "median_no_model", 90),
    ],
)
async def test_what_serves_without_a_model(
    settings: TaggerSettings, source: str, p50: float
) -> None:
    made, what = made_of(settings)
    estimate = await made.estimate(question("hello there"))  # type: ignore[attr-defined]
    assert (estimate.length.source, estimate.length.p50) == (source, p50)
    assert what["estimator"] == source
    made.close()  # type: ignore[attr-defined]


async def test_a_damaged_model_file_does_not_stop_the_tagger(
    tmp_path: Path, damaged_model: Callable[[Path], Path]
) -> None:
    made, what = made_of(TaggerSettings(model=damaged_model(tmp_path)))
    assert what["estimator"] == "median_no_model"
    made.close()  # type: ignore[attr-defined]


async def test_the_packaged_model_is_the_default() -> None:
    made, what = made_of(TaggerSettings())
    assert what["estimator"] == LengthModel.load().name
    assert "CPUExecutionProvider" in what["providers"]
    made.close()  # type: ignore[attr-defined]
