"""The model on its threads: nobody waits too long, no two answers are mixed up."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tagger.model import LengthModel
from tagger.runner import BATCH_MAX, ModelRunner, TooLate, batch_that_pays
from tests.tagger.questions import BrokenModel, FakeModel, question


async def test_an_answer_has_count_and_quantiles() -> None:
    runner = ModelRunner(FakeModel())
    assert await runner.estimate(question("four"), wait_s=2) == (11, (5.0, 6.0, 7.0))
    runner.close()


async def test_whose_turn_comes_too_late_is_not_computed() -> None:
    model = FakeModel(0.3)
    runner = ModelRunner(model)
    asked = [runner.estimate(question("x" * n), wait_s=0.1) for n in range(1, 6)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert answers[0] == (8, (2.0, 3.0, 4.0)), "the first has begun: it is waited for"
    assert all(isinstance(answer, TooLate) for answer in answers[1:])
    await asyncio.sleep(0.4)
    assert model.computed == 1
    runner.close()


async def test_what_the_model_raises_reaches_the_asker_and_the_next_is_served() -> None:
    runner = ModelRunner(BrokenModel())
    for _ in range(3):
        with pytest.raises(RuntimeError, match="broken"):
            await runner.estimate(question("x"), wait_s=2)
    runner.close()


async def test_an_asker_that_leaves_blocks_nobody() -> None:
    model = FakeModel(0.1)
    runner = ModelRunner(model)
    leaving = [asyncio.create_task(runner.estimate(question("x"), wait_s=5)) for _ in range(3)]
    await asyncio.sleep(0.02)
    for task in leaving:
        task.cancel()
    assert (await runner.estimate(question("four"), wait_s=5))[0] == 11
    runner.close()


async def test_a_closed_runner_begins_nothing_more() -> None:
    model = FakeModel(0.1)
    runner = ModelRunner(model)
    running = asyncio.create_task(runner.estimate(question("x"), wait_s=5))
    waiting = asyncio.create_task(runner.estimate(question("y"), wait_s=0.3))
    await asyncio.sleep(0.02)
    runner.close()
    assert (await running)[0] == 8
    with pytest.raises(TooLate):
        await waiting
    assert model.computed == 1


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 3_000), min_size=1, max_size=40),
    threads=st.integers(1, 3),
    batch_max=st.sampled_from([1, 2, 5, 16]),
    seed=st.integers(0, 999),
)
def test_batching_never_mixes_up_two_requests(
    lengths: list[int], threads: int, batch_max: int, seed: int
) -> None:
    """Arrivals at random times; every answer is of its own prompt."""
    rng = random.Random(seed)
    model = FakeModel(0.0005)

    async def ask(runner: ModelRunner, length: int) -> None:
        await asyncio.sleep(rng.uniform(0, 0.005))
        tokens, (_, p50, _) = await runner.estimate(question("x" * length), wait_s=30)
        assert (tokens, p50) == (length + 7, length + 2)

    async def run() -> None:
        runner = ModelRunner(model, threads=threads, batch_max=batch_max)
        await asyncio.gather(*(ask(runner, length) for length in lengths))
        runner.close()

    asyncio.run(run())
    assert model.computed == len(lengths)
    assert max(model.batches) <= batch_max


async def test_prompts_of_like_length_that_wait_together_are_one_call() -> None:
    model = FakeModel(0.1)
    runner = ModelRunner(model, batch_max=8)
    short = [runner.estimate(question("x" * n), wait_s=5) for n in range(1, 6)]
    long = [runner.estimate(question("x" * n), wait_s=5) for n in (5_000, 5_001)]
    await asyncio.gather(*short, *long)
    assert sorted(model.batches) == [1, 2, 4], "the first alone, then those that waited, by size"
    runner.close()


def test_a_batch_is_used_where_it_pays() -> None:
    prompts = ["x"] * BATCH_MAX
    assert batch_that_pays(FakeModel(0.01), prompts) == BATCH_MAX


def test_a_batch_that_changes_estimates_is_not_used() -> None:
    """The shipped int8 model: its scales are taken over the batch."""
    model = LengthModel.load()
    prompts = ["Why is the sky blue?", "Write a long story about a fox. " * 8] * 8
    assert batch_that_pays(model, prompts) == 1
