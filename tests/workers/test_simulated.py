"""The simulated engine as a worker sees it; fast (time_scale 0) unless time is the point."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from pipeline.errors import (
    BadRequest,
    DuplicateId,
    EngineFailed,
    Overloaded,
    PromptTooLong,
    RequestError,
    UsageError,
)
from pipeline.messages import LengthEstimate, Probe, Request
from predictor.simulation import simulate
from predictor.step_time import LIMITS, PROFILES, StepLoad, step_ms
from workers.engine import Delta, Engine, EngineRequest
from workers.simulated import SimulatedEngine
from workers.simulated_answer import Words, answer_length
from workers.simulated_settings import SGLANG_CHUNK_TOKENS, SimulatedSettings
from workers.simulated_time import Pace


@asynccontextmanager
async def started(**settings: Any) -> AsyncIterator[SimulatedEngine]:
    engine = SimulatedEngine(SimulatedSettings(**{"time_scale": 0, **settings}))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def asked(
    key: str = "a",
    *,
    prompt: str = "Why is the sky blue?",
    prompt_tokens: int = 6,
    tokens: int | str | None = None,
    **fields: Any,
) -> EngineRequest:
    if tokens is not None:
        fields["metadata"] = {"response_tokens": str(tokens)}
    request = Request(id=key, prompt=prompt, **fields)
    return EngineRequest(key, request, prompt, prompt_tokens)


async def answer(engine: SimulatedEngine, request: EngineRequest) -> list[Delta]:
    async with aclosing(engine.generate(request)) as deltas:
        return [delta async for delta in deltas]


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def count(deltas: list[Delta]) -> int:
    return sum(delta.tokens for delta in deltas)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def test_it_is_an_engine_and_hands_out_the_plain_profile() -> None:
    engine: Engine = SimulatedEngine(SimulatedSettings(kv_blocks=500, max_num_seqs=5))
    ready = await engine.start()
    await engine.close()
    assert ready.step_time == PROFILES["a30-llama-2-7b"]
    assert (ready.limits.kv_blocks, ready.limits.max_num_seqs) == (500, 5)
    assert ready.limits.max_num_batched_tokens == LIMITS["a30-llama-2-7b"].max_num_batched_tokens


async def test_an_answer_has_its_natural_length_and_says_why_it_ended() -> None:
    async with started() as engine:
        deltas = await answer(engine, asked(tokens=30))
    assert count(deltas) == 30
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason == "stop"
    assert (deltas[-1].prompt_tokens, deltas[-1].preemptions) == (6, 0)
    assert len(text(deltas).split()) == 30
    assert text(deltas) == Words("Why is the sky blue?").take(30)


@pytest.mark.parametrize(
    ("fields", "tokens", "reason"),
    [
        ({"tokens": 30, "max_tokens": 30}, 30, "stop"),
        ({"tokens": 30, "max_tokens": 29}, 29, "length"),
        ({"tokens": 30, "max_tokens": 12, "ignore_eos": True}, 12, "length"),
        ({"tokens": 1}, 1, "stop"),
        ({"tokens": 9999}, 94, "length"),
        ({"max_tokens": 5000, "ignore_eos": True}, 94, "length"),
        ({"ignore_eos": True}, 94, "length"),
    ],
)
async def test_lengths_and_finish_reasons(fields: dict[str, Any], tokens: int, reason: str) -> None:
    async with started(max_model_len=100) as engine:
        deltas = await answer(engine, asked(**fields))
    assert (count(deltas), deltas[-1].finish_reason) == (tokens, reason)


async def test_a_prompt_is_answered_alike_by_every_instance_of_a_seed() -> None:
    lengths = set()
    async with started(seed=7) as one, started(seed=7, max_num_seqs=2) as other:
        for number in range(5):
            request = asked(prompt=f"question {number}")
            first, second = await answer(one, request), await answer(other, request)
            assert text(first) == text(second)
            assert first[-1].finish_reason == second[-1].finish_reason
            lengths.add(count(first))
    assert len(lengths) > 1


def test_natural_lengths_have_the_median_that_was_set() -> None:
    def length(prompt: str, seed: int) -> int:
        request = Request(id="a", prompt=prompt)
        return answer_length(request, prompt, 4000, seed=seed, median=200, sigma=0.7)[0]

    lengths = sorted(length(f"prompt {number}", 0) for number in range(1001))
    assert lengths[500] == pytest.approx(200, rel=0.1)
    assert length("prompt 1", 0) == length("prompt 1", 0)
    assert any(length(f"prompt {n}", 0) != length(f"prompt {n}", 1) for n in range(5))


def test_words_do_not_depend_on_how_they_are_taken() -> None:
    whole = Words("p").take(500)
    words = Words("p")
    assert "".join(words.take(n) for n in (1, 2, 0, 7, 90, 400)) == whole
    assert whole[0].isupper()
    assert ". " in whole
    assert "\n\n" in whole
    assert Words("q").take(500) != whole
    assert Words("\ud800").take(1)  # half a surrogate pair, which JSON can carry


@pytest.mark.parametrize("stated", ["0", "-1", "1.5", "many", "", " 3", "٣", "9" * 400])
async def test_a_natural_length_that_is_none_is_refused_by_name(stated: str) -> None:
    async with started() as engine:
        with pytest.raises(BadRequest) as caught:
            await answer(engine, asked(tokens=stated))
        assert caught.value.field == "metadata.response_tokens"
        assert engine.stats().waiting == 0


async def test_a_slow_reader_gets_everything_merged_and_in_order() -> None:
    async with started() as engine, aclosing(engine.generate(asked(tokens=60))) as deltas:
        got = [await anext(deltas)]
        await until(lambda: engine.stats().steps >= 30)
        got.append(await anext(deltas))
        await until(lambda: engine.stats().running == 0)
        got += [delta async for delta in deltas]
    assert len(got) == 3
    assert got[1].tokens > 1
    assert got[2].finish_reason == "stop"
    assert count(got) == 60
    assert text(got) == Words("Why is the sky blue?").take(60)


async def test_the_readers_of_many_requests_get_exactly_theirs() -> None:
    async with started(kv_blocks=256) as engine:
        requests = [
            asked(str(n), prompt=f"p{n}", prompt_tokens=1 + 7 * n, tokens=1 + 13 * n)
            for n in range(50)
        ]
        started_at = asyncio.get_running_loop().time()
        answers = await asyncio.gather(*(answer(engine, request) for request in requests))
        assert asyncio.get_running_loop().time() - started_at < 10
        stats = engine.stats()
    for number, deltas in enumerate(answers):
        assert text(deltas) == Words(f"p{number}").take(1 + 13 * number)
        assert deltas[-1].finish_reason == "stop"
    assert stats.preemptions > 0
    assert sum(deltas[-1].preemptions for deltas in answers) == stats.preemptions
    assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)


async def test_stats_show_the_queues_in_the_schedulers_order() -> None:
    async with started(max_num_seqs=2, time_scale=1) as engine:
        readers = [
            asyncio.create_task(answer(engine, asked(key, prompt_tokens=600, tokens=9)))
            for key in ("a", "b", "c")
        ]
        await until(lambda: len(engine.stats().progress) == 3 and engine.stats().running == 1)
        stats = engine.stats()
        assert [(key, p.phase) for key, p in stats.progress.items()] == [
            ("a", "prefilling"),
            ("b", "waiting"),
            ("c", "waiting"),
        ]
        await until(lambda: engine.stats().running == 2)
        await until(lambda: engine.stats().progress["a"].phase == "decoding")
        stats = engine.stats()
        assert (stats.running, stats.waiting) == (2, 1)
        assert stats.progress["a"].computed_tokens == 599 + stats.progress["a"].generated_tokens
        assert stats.kv_blocks_used >= 38
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        assert engine.stats().kv_blocks_used == 0


async def test_a_preempted_request_shows_as_such() -> None:
    async with started(kv_blocks=8, max_model_len=128, time_scale=0.02) as engine:
        readers = [
            asyncio.create_task(answer(engine, asked(key, prompt_tokens=50, tokens=60)))
            for key in ("a", "b")
        ]
        await until(lambda: engine.stats().preemptions > 0)
        progress = engine.stats().progress["b"]
        assert (progress.phase, progress.computed_tokens) == ("preempted", 0)
        assert progress.generated_tokens > 0
        for deltas in await asyncio.gather(*readers):
            assert count(deltas) == 60


async def test_by_sglangs_rules_prefill_comes_first_and_its_admission_is_told() -> None:
    async with started(rules="sglang", time_scale=0.2) as engine:
        first = engine.generate(asked("a", tokens=1000))
        await anext(first)
        second = asyncio.create_task(answer(engine, asked("b", prompt_tokens=4000, tokens=9)))
        await until(lambda: "b" in engine.stats().progress)
        await until(lambda: engine.stats().progress["b"].phase == "prefilling")
        standing = engine.stats().progress["a"].generated_tokens
        await until(lambda: engine.stats().progress["b"].computed_tokens == SGLANG_CHUNK_TOKENS)
        assert engine.stats().progress["a"].generated_tokens == standing
        admission = engine.stats().admission
        assert admission is not None
        assert 0.6 < admission.new_token_ratio < 0.7  # some decode steps have been
        assert count(await second) == 9
        await first.aclose()


async def test_by_sglangs_rules_the_lessons_of_a_retraction_are_told() -> None:
    pool = {"kv_blocks": 180, "max_model_len": 128, "schedule_conservativeness": 0.01}
    async with started(rules="sglang", time_scale=0.02, **pool) as engine:
        requests = [asked(key, prompt_tokens=50, tokens=60, max_tokens=60) for key in ("a", "b")]
        readers = [asyncio.create_task(answer(engine, request)) for request in requests]
        await until(lambda: engine.stats().preemptions > 0)
        stats = engine.stats()
        assert stats.progress["b"].phase == "preempted"
        assert stats.admission is not None
        assert stats.admission.new_token_ratio > 0.1
        for deltas in await asyncio.gather(*readers):
            assert count(deltas) == 60


@pytest.mark.parametrize(
    ("settings", "rules", "pool"),
    [
        ({}, "vllm", (16, 1052)),
        ({"block_size": 32}, "vllm", (32, 526)),
        ({"rules": "vllm-v0"}, "vllm-v0", (16, 1052)),
        ({"rules": "sglang"}, "sglang", (1, 16832)),
        ({"rules": "sglang", "block_size": 64}, "sglang", (64, 263)),
        ({"rules": "sglang", "block_size": 64, "kv_blocks": 80}, "sglang", (64, 80)),
    ],
)
def test_the_same_pool_by_other_rules(
    settings: dict[str, Any], rules: str, pool: tuple[int, int]
) -> None:
    limits = SimulatedSettings(**settings).limits()
    assert (limits.rules, (limits.block_size, limits.kv_blocks)) == (rules, pool)


def test_schedule_conservativeness_sets_the_new_token_ratios() -> None:
    limits = SimulatedSettings(rules="sglang", schedule_conservativeness=0.5).limits()
    assert limits.new_token_ratio_start == pytest.approx(0.35)
    assert limits.new_token_ratio_min == pytest.approx(0.049)


@pytest.mark.parametrize("way", ["close", "cancel", "abort"])
async def test_every_way_of_leaving_frees_the_blocks(way: str) -> None:
    async with started(time_scale=0.01) as engine:
        if way == "cancel":
            task = asyncio.create_task(answer(engine, asked(tokens=1000)))
            await until(lambda: engine.stats().running == 1)
            task.cancel()
            await asyncio.wait([task])
        else:
            deltas = engine.generate(asked(tokens=1000))
            await anext(deltas)
            assert engine.stats().kv_blocks_used > 0
            if way == "close":
                await deltas.aclose()
            else:
                await engine.abort("a")
                rest = [delta async for delta in deltas]
                assert all(delta.finish_reason is None for delta in rest)
        assert (engine.stats().running, engine.stats().kv_blocks_used) == (0, 0)
        await engine.abort("a")
        await engine.abort("never seen")
        assert count(await answer(engine, asked(tokens=3))) == 3  # the key is free again


async def test_the_end_of_an_aborted_stream_does_not_touch_its_successor() -> None:
    async with started(time_scale=0.01) as engine:
        old = engine.generate(asked(tokens=1000))
        await anext(old)
        await engine.abort("a")
        new = asyncio.create_task(answer(engine, asked(tokens=20)))
        await until(lambda: engine.stats().running == 1)
        await old.aclose()
        assert count(await new) == 20


async def test_prompts_without_room_are_refused_with_the_limit() -> None:
    async with started(max_model_len=100) as engine:
        assert count(await answer(engine, asked(prompt_tokens=99, tokens=5))) == 1
        for prompt_tokens in (100, 5000):
            with pytest.raises(PromptTooLong) as caught:
                await answer(engine, asked(prompt_tokens=prompt_tokens))
            assert (caught.value.field, caught.value.limit) == ("prompt", 99)


async def test_a_key_in_use_is_refused_and_its_holder_is_left_alone() -> None:
    async with started(time_scale=0.01) as engine:
        first = asyncio.create_task(answer(engine, asked(tokens=30)))
        await until(lambda: engine.stats().running == 1)
        with pytest.raises(DuplicateId):
            await answer(engine, asked(tokens=30))
        assert count(await first) == 30


async def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    async with started(queue_max=2, max_num_seqs=1, time_scale=0.01) as engine:
        readers = []
        for key in "abc":
            readers.append(asyncio.create_task(answer(engine, asked(key, tokens=50))))
            await until(lambda key=key: key in engine.stats().progress)  # type: ignore[misc]
            await until(lambda: engine.stats().running == 1)
        with pytest.raises(Overloaded) as caught:
            await answer(engine, asked("d", tokens=3))
        assert caught.value.retry_after_ms is not None
        assert caught.value.retry_after_ms >= 50
        assert [count(deltas) for deltas in await asyncio.gather(*readers)] == [50] * 3


async def test_it_serves_only_between_start_and_close() -> None:
    engine = SimulatedEngine(SimulatedSettings(time_scale=0.01))
    with pytest.raises(EngineFailed, match="not started"):
        await answer(engine, asked())
    await engine.start()
    with pytest.raises(RuntimeError):
        await engine.start()
    reader = asyncio.create_task(answer(engine, asked(tokens=1000)))
    await until(lambda: engine.stats().running == 1)
    await engine.close()
    with pytest.raises(EngineFailed, match="closed"):
        await reader
    with pytest.raises(EngineFailed, match="closed"):
        await answer(engine, asked())
    assert engine.stats().kv_blocks_used == 0
    await engine.close()


async def test_a_broken_step_loop_fails_every_stream_and_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with started(time_scale=0.01) as engine:
        failed = asyncio.create_task(engine.wait_failed())
        readers = [
            asyncio.create_task(answer(engine, asked(key, tokens=1000))) for key in ("a", "b")
        ]
        await until(lambda: engine.stats().running == 2)
        assert not failed.done()

        def broken(self: object, load: object) -> float:
            raise ZeroDivisionError("on purpose")

        monkeypatch.setattr("workers.simulated_time.TrueStepTime.next_ms", broken)
        assert "on purpose" in await failed
        for reader in readers:
            with pytest.raises(EngineFailed, match="on purpose"):
                await reader
        with pytest.raises(EngineFailed, match="on purpose"):
            await answer(engine, asked("c"))


async def test_an_idle_engine_takes_no_steps_and_wakes_up_again() -> None:
    async with started() as engine:
        assert count(await answer(engine, asked(tokens=5))) == 5
        steps = engine.stats().steps
        await asyncio.sleep(0.02)
        assert engine.stats().steps == steps == 5
        assert count(await answer(engine, asked(tokens=5))) == 5


async def test_time_passes_as_the_forecast_says() -> None:
    request = asked(prompt_tokens=100, tokens=100)
    probe = Probe(
        key="a",
        prompt_tokens=100,
        estimate=LengthEstimate(p10=100, p50=100, p90=100, source="truth"),
    )
    profile = "a30-llama-2-7b"
    forecast = simulate(LIMITS[profile], PROFILES[profile], [], probe)
    loop = asyncio.get_running_loop()
    async with started(time_scale=0.2, noise=0, overhead_ms=0) as engine:
        began = loop.time()
        await answer(engine, request)
        took_ms = (loop.time() - began) * 1000 / 0.2
    assert took_ms == pytest.approx(forecast.e2e_ms, rel=0.5)


async def test_after_a_stall_at_most_one_step_is_made_up_for() -> None:
    loop = asyncio.get_running_loop()
    pace = Pace()
    await pace.wait(0.02)
    await asyncio.sleep(0.5)
    began = loop.time()
    for _ in range(10):
        await pace.wait(0.02)
    assert loop.time() - began > 0.1


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"profile": "a31"}, "profile"),
        ({"kv_blocks": 0}, "kv_blocks"),
        ({"max_num_seqs": -1}, "max_num_seqs"),
        ({"noise": float("nan")}, "noise"),
        ({"time_scale": -0.1}, "time_scale"),
        ({"queue_max": 0}, "queue_max"),
        ({"kv_blocks": 100}, "max_model_len"),
        ({"schedule_conservativeness": 1.0}, "schedule_conservativeness"),
        ({"rules": "sglang", "schedule_conservativeness": -1}, "schedule_conservativeness"),
        ({"rules": "sglang", "block_size": 3}, "max_num_batched_tokens"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        SimulatedSettings(**settings)


def test_refusals_are_errors_that_a_client_can_be_told() -> None:
    for error in (BadRequest, DuplicateId, EngineFailed, Overloaded, PromptTooLong):
        assert issubclass(error, RequestError)


async def test_the_steps_it_took_are_told_once() -> None:
    engine = SimulatedEngine(SimulatedSettings(time_scale=0.01, overhead_ms=6.0, noise=0.0))
    ready = await engine.start()
    request = EngineRequest(
        key="c.r",
        request=Request(id="r", prompt="x", max_tokens=20, ignore_eos=True),
        prompt="x",
        prompt_tokens=40,
    )
    tokens = sum([delta.tokens async for delta in engine.generate(request)])
    steps = engine.take_steps()
    assert len(steps) == tokens == 20
    assert (steps[0].tokens, steps[0].context_tokens) == (40, 0)
    assert (steps[-1].tokens, steps[-1].context_tokens) == (1, 58)
    for step in steps:
        load = StepLoad(step.tokens, step.prefill_work, step.context_tokens, step.sequences)
        assert step.duration_ms == pytest.approx(step_ms(ready.step_time, load) + 0.06)
    assert engine.take_steps() == []
    await engine.close()
