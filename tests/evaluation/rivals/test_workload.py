"""The arrivals: seeded, paired, apart from each other; and what an engine can do of them."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.rivals.engines import Engines
from evaluation.rivals.workload import (
    ANSWERS,
    PROMPTS,
    Arrival,
    Lengths,
    alone_ms,
    arrival,
    arrivals,
    capacity,
)
from pipeline.messages import Request
from workers.engine import EngineRequest
from workers.simulated import SimulatedEngine
from workers.simulated_settings import SimulatedSettings

ENGINE = SimulatedSettings(noise=0, time_scale=0.0)


def as_sent(made: list[Arrival]) -> list[tuple[float, str, int]]:
    return [(one.at_s, one.messages[0].content, one.answer_tokens) for one in made]


@given(seed=st.integers(0, 2**31 - 1), rate=st.floats(0.5, 50), seconds=st.floats(1, 10))
@settings(max_examples=25)
def test_one_seed_is_one_load(seed: int, rate: float, seconds: float) -> None:
    made = arrivals("a", rate, seconds, seed)
    again = arrivals("b", rate, seconds, seed)
    assert as_sent(made) == as_sent(again)
    assert len(made) == max(1, round(rate * seconds))
    assert [one.at_s for one in made] == sorted(one.at_s for one in made)
    assert not {one.id for one in made} & {one.id for one in again}
    assert all(1 <= one.answer_tokens <= ANSWERS.most for one in made)
    assert all(1 <= one.prompt_tokens <= PROMPTS.most for one in made)


def test_another_seed_is_another_load() -> None:
    assert as_sent(arrivals("a", 10, 2, 1)) != as_sent(arrivals("a", 10, 2, 2))


def test_no_two_prompts_share_a_beginning() -> None:
    """Else a router that follows prefixes would be led by them."""
    texts = [one.messages[0].content for one in arrivals("a", 50, 10, 3)]
    assert len({text.partition(":")[0] for text in texts}) == len(texts)


def test_lengths_are_spread_as_they_say() -> None:
    made = arrivals("a", 100, 50, 4, answers=Lengths(median=60, sigma=1.0, most=100_000))
    ordered = sorted(one.answer_tokens for one in made)
    assert ordered[len(ordered) // 2] == pytest.approx(60, rel=0.1)
    share_within_a_sigma = sum(60 / 2.718 <= tokens <= 60 * 2.718 for tokens in ordered)
    assert share_within_a_sigma / len(ordered) == pytest.approx(0.683, abs=0.03)


@given(prompt=st.integers(1, 900), answer=st.integers(1, 300), scale=st.floats(0.1, 10))
@settings(max_examples=25, deadline=None)
def test_alone_scales_with_time_and_grows_with_the_answer(
    prompt: int, answer: int, scale: float
) -> None:
    one = arrival("a", 0.0, prompt, answer, text_seed="a")
    took_ms = alone_ms(one, replace(ENGINE, time_scale=1.0))
    assert alone_ms(one, replace(ENGINE, time_scale=scale)) == pytest.approx(took_ms * scale)
    longer = arrival("a", 0.0, prompt, answer + 1, text_seed="a")
    assert alone_ms(longer, replace(ENGINE, time_scale=1.0)) > took_ms


async def test_alone_is_what_the_engine_takes() -> None:
    """The same steps: what the engine reports of a lone request adds up to it."""
    engine = SimulatedEngine(ENGINE)
    await engine.start()
    one = arrival("a", 0.0, 700, 20, text_seed="a")
    request = Request(id="a", messages=list(one.messages), max_tokens=20, ignore_eos=True)
    async for _ in engine.generate(EngineRequest("a", request, "p", one.prompt_tokens)):
        pass
    steps = engine.stats().steps
    await engine.close()
    assert steps == 2 + 19  # 700 tokens in chunks of 512, then one token a step
    at_least_ms = steps * (ENGINE.overhead_ms + 8.2 + 12.4)  # base and flat of the profile
    assert at_least_ms < alone_ms(one, replace(ENGINE, time_scale=1.0)) < at_least_ms * 1.2


def test_capacity_goes_with_speed_and_number() -> None:
    equal = Engines(4, 1.0, seed=1)
    assert equal.capacity() == pytest.approx(4 * capacity(equal.ordinary))
    assert Engines(4, 2.0, 1).capacity() == pytest.approx(equal.capacity() / 2)
    slower = Engines(4, 1.0, 1, first_slower=3.0)
    assert slower.capacity() == pytest.approx(equal.capacity() * (3 + 1 / 3) / 4)


def test_capacity_is_below_what_full_slots_could_do() -> None:
    """Every step costs at least base, flat and overhead, and makes at most a token a slot."""
    settings_ = Engines(1, 1.0, 1).ordinary
    step_ms = 3.7 + 5.9 + settings_.overhead_ms
    mean_tokens = 60 * 2.718**0.5 * 0.85  # of the log-normal, cut off: not less than this
    assert 0 < capacity(settings_) < 16 / mean_tokens / (step_ms / 1000)


def test_only_the_first_engine_is_slower_and_noise_is_its_own() -> None:
    engines = Engines(3, 0.5, seed=7, first_slower=3.0)
    made = [engines.settings(number) for number in range(3)]
    assert [one.time_scale for one in made] == [1.5, 0.5, 0.5]
    assert len({one.seed for one in made}) == 3
    assert "time_scale=1.5" in engines.arguments(0)
    assert "time_scale=0.5" in engines.common_arguments()
