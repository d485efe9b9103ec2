"""What every engine adapter has to do. A test class per adapter inherits this and says how to make
an engine; it runs against the real thing wherever that is there.

    class TestSimulated(Conformance):
        async def make(self, **limits): ...
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

import pytest

from pipeline.errors import DuplicateId, EngineFailed, PromptTooLong
from pipeline.messages import ChatMessage, Request
from tests.waiting import eventually
from workers.engine import Delta, Engine, EngineDown, EngineReady, EngineRequest

MAX_MODEL_LEN = 512
MAX_NUM_SEQS = 4
SETTLES_S = 15.0


def asked(
    key: str,
    prompt: str = "Why is the sky blue?",
    *,
    prompt_tokens: int = 8,
    priority: int = 0,
    **more: object,
) -> EngineRequest:
    request = Request(id=key.replace(".", "-"), prompt=prompt, **more)  # type: ignore[arg-type]
    return EngineRequest(key, request, prompt, prompt_tokens, priority)


async def answer(engine: Engine, request: EngineRequest) -> list[Delta]:
    async with contextlib.aclosing(engine.generate(request)) as deltas:
        return [delta async for delta in deltas]


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def tokens_of(deltas: list[Delta]) -> int:
    return sum(delta.tokens for delta in deltas)


class Conformance(ABC):
    """`make` gives a fresh engine, not started, of MAX_MODEL_LEN and MAX_NUM_SEQS."""

    tells_blocks = True
    """Whether the use of KV blocks is seen, not inferred."""
    orders_by_priority = True

    @abstractmethod
    async def make(self) -> Engine: ...

    async def too_long(self) -> EngineRequest:
        """One whose prompt alone is longer than the model."""
        return asked("long", "word " * 3 * MAX_MODEL_LEN, prompt_tokens=3 * MAX_MODEL_LEN)

    @pytest.fixture
    async def engine(self) -> AsyncIterator[Engine]:
        engine = await self.make()
        self.ready = await engine.start()
        yield engine
        await engine.close()

    ready: EngineReady

    async def test_its_limits_are_the_engines_own(self, engine: Engine) -> None:
        limits = self.ready.limits
        assert limits.max_model_len == MAX_MODEL_LEN
        assert limits.max_num_seqs == MAX_NUM_SEQS
        assert limits.kv_blocks * limits.block_size >= limits.max_model_len
        assert self.ready.model

    async def test_an_answer_comes_in_order_and_ends_with_its_reason(self, engine: Engine) -> None:
        deltas = await answer(engine, asked("c.r1", max_tokens=20, ignore_eos=True))
        assert tokens_of(deltas) == 20
        assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
        last = deltas[-1]
        assert (last.finish_reason, last.prompt_tokens > 0) == ("length", True)
        assert text_of(deltas)

    async def test_a_chat_is_answered(self, engine: Engine) -> None:
        messages = [ChatMessage(role="user", content="Why is the sky blue?")]
        request = Request(id="r", messages=messages, max_tokens=8, ignore_eos=True)
        deltas = await answer(engine, EngineRequest("c.r", request, "user: Why?", 8))
        assert tokens_of(deltas) == 8

    async def test_the_same_request_has_the_same_answer(self, engine: Engine) -> None:
        fields = {"max_tokens": 12, "ignore_eos": True, "temperature": 0.0}
        first = await answer(engine, asked("c.a", **fields))  # type: ignore[arg-type]
        again = await answer(engine, asked("c.b", **fields))  # type: ignore[arg-type]
        assert text_of(first) == text_of(again)
        assert tokens_of(first) == tokens_of(again)

    async def test_a_slow_reader_loses_nothing(self, engine: Engine) -> None:
        fields = {"max_tokens": 40, "ignore_eos": True, "temperature": 0.0}
        quick = await answer(engine, asked("c.a", **fields))  # type: ignore[arg-type]
        slow: list[Delta] = []
        async with contextlib.aclosing(engine.generate(asked("c.b", **fields))) as deltas:  # type: ignore[arg-type]
            async for delta in deltas:
                slow.append(delta)
                await asyncio.sleep(0.05)
        assert text_of(slow) == text_of(quick)
        assert tokens_of(slow) == 40

    async def test_max_tokens_beyond_the_room_is_clipped_and_ends_in_length(
        self, engine: Engine
    ) -> None:
        deltas = await answer(engine, asked("c.r", max_tokens=100_000, ignore_eos=True))
        assert deltas[-1].finish_reason == "length"
        assert tokens_of(deltas) + deltas[-1].prompt_tokens <= MAX_MODEL_LEN
        assert tokens_of(deltas) > MAX_MODEL_LEN - 40

    async def test_a_prompt_longer_than_the_model_is_refused_by_name(self, engine: Engine) -> None:
        with pytest.raises(PromptTooLong):
            await answer(engine, await self.too_long())
        assert tokens_of(await answer(engine, asked("c.r", max_tokens=4, ignore_eos=True))) == 4

    async def test_a_key_in_use_is_refused_and_its_holder_goes_on(self, engine: Engine) -> None:
        request = asked("c.r", max_tokens=150, ignore_eos=True)
        async with contextlib.aclosing(engine.generate(request)) as deltas:
            taken = [await anext(deltas)]
            with pytest.raises(DuplicateId):
                await answer(engine, asked("c.r", max_tokens=5))
            taken += [delta async for delta in deltas]
        assert tokens_of(taken) == 150

    async def test_a_key_that_begins_another_is_not_taken_for_it(self, engine: Engine) -> None:
        requests = [asked(key, max_tokens=400, ignore_eos=True) for key in ("c.r10", "c.r1")]
        long, short = (engine.generate(request) for request in requests)
        async with contextlib.aclosing(long), contextlib.aclosing(short):
            taken = [await anext(long)]
            await anext(short)
            await engine.abort("c.r1")
            taken += [delta async for delta in long]
        assert tokens_of(taken) == 400

    @pytest.mark.parametrize("way", ["abort", "close"])
    async def test_what_is_given_up_frees_its_place(self, engine: Engine, way: str) -> None:
        request = asked("c.r", max_tokens=400, ignore_eos=True)
        async with contextlib.aclosing(engine.generate(request)) as deltas:
            await anext(deltas)
            if way == "abort":
                await engine.abort("c.r")
                async with asyncio.timeout(SETTLES_S):
                    rest = [delta async for delta in deltas]
                assert all(delta.finish_reason is None for delta in rest)
        await eventually(lambda: _idle(engine), what="an idle engine", within_s=SETTLES_S)

    async def test_an_unknown_key_can_be_aborted(self, engine: Engine) -> None:
        await engine.abort("c.nobody")

    async def test_many_are_given_up_at_once(self, engine: Engine) -> None:
        keys = [f"c.r{number}" for number in range(30)]
        runs = [
            asyncio.create_task(answer(engine, asked(key, max_tokens=400, ignore_eos=True)))
            for key in keys
        ]
        await eventually(lambda: engine.stats().running > 0, what="a run", within_s=SETTLES_S)
        await asyncio.gather(*(engine.abort(key) for key in keys))
        async with asyncio.timeout(SETTLES_S):
            ends = await asyncio.gather(*runs, return_exceptions=True)
        assert not [end for end in ends if isinstance(end, EngineFailed)]
        await eventually(lambda: _idle(engine), what="an idle engine", within_s=SETTLES_S)
        assert tokens_of(await answer(engine, asked("c.r0", max_tokens=4, ignore_eos=True))) == 4

    async def test_what_it_tells_of_itself_shows_its_work(self, engine: Engine) -> None:
        assert _idle(engine)
        runs = [
            asyncio.create_task(answer(engine, asked(f"c.{n}", max_tokens=250, ignore_eos=True)))
            for n in range(MAX_NUM_SEQS + 3)
        ]
        await eventually(
            lambda: engine.stats().running == MAX_NUM_SEQS and engine.stats().waiting > 0,
            what="a full batch and a queue",
            within_s=SETTLES_S,
        )
        if self.tells_blocks:
            await eventually(
                lambda: engine.stats().kv_blocks_used > 0, what="blocks", within_s=SETTLES_S
            )
        await asyncio.gather(*runs)
        await eventually(lambda: _idle(engine), what="an idle engine", within_s=SETTLES_S)

    async def test_after_close_it_serves_nobody(self) -> None:
        engine = await self.make()
        await engine.start()
        request = asked("c.r", max_tokens=450, ignore_eos=True)
        async with contextlib.aclosing(engine.generate(request)) as deltas:
            await anext(deltas)
            await engine.close()
            with pytest.raises(EngineFailed):
                _ = [delta async for delta in deltas]
        with pytest.raises(EngineDown):
            await answer(engine, asked("c.s"))


def _idle(engine: Engine) -> bool:
    stats = engine.stats()
    return stats.running == 0 and stats.waiting == 0
