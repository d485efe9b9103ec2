"""A real vLLM in this process, as an engine. Runs in vLLM's own environment: `make test-engines`.

An engine takes half a minute to start, so most tests share one.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from importlib.util import find_spec
from multiprocessing import active_children

import pytest
import pytest_asyncio

from engines.folder import TINY_LLAMA, VLLM_ENVIRONMENT
from pipeline.errors import BadRequest, EngineFailed, Overloaded, UsageError
from tests.waiting import eventually
from tests.workers.conformance import (
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    Conformance,
    answer,
    asked,
    tokens_of,
)
from workers.engine import Engine
from workers.vllm_engine.engine import VLLMEngine
from workers.vllm_engine.settings import VLLMSettings

pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not in this environment"),
    pytest.mark.skipif(not TINY_LLAMA.is_dir(), reason="`make engines` makes the tiny Llama"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),  # vLLM's and its libraries' own
    pytest.mark.asyncio(loop_scope="module"),
]

ARGS = (
    "--dtype bfloat16 --enforce-eager --block-size 32 --num-gpu-blocks-override 41 "
    f"--kv-cache-memory-bytes 67108864 --max-model-len {MAX_MODEL_LEN} "
    f"--max-num-seqs {MAX_NUM_SEQS} --max-num-batched-tokens 256 --no-enable-prefix-caching"
)


def made(args: str = "", **more: object) -> VLLMEngine:
    os.environ.update(VLLM_ENVIRONMENT)  # of this environment nothing else is run
    settings = VLLMSettings(str(TINY_LLAMA), args=f"{ARGS} {args}", **more)  # type: ignore[arg-type]
    return VLLMEngine(settings)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared() -> AsyncIterator[tuple[Engine, object]]:
    engine = made("--max-num-queued-reqs 120")
    ready = await engine.start()
    yield engine, ready
    await engine.close()


class TestVLLM(Conformance):
    async def make(self) -> Engine:
        return made()

    @pytest.fixture
    def engine(self, shared: tuple[Engine, object]) -> Engine:
        engine, self.ready = shared  # type: ignore[assignment]
        return engine

    async def test_the_scheduler_tells_of_every_request(self, engine: Engine) -> None:
        runs = [
            asyncio.create_task(answer(engine, asked(f"c.{n}", max_tokens=200, ignore_eos=True)))
            for n in range(MAX_NUM_SEQS + 2)
        ]
        await eventually(
            lambda: (
                [p.phase for p in engine.stats().progress.values()].count("decoding")
                == MAX_NUM_SEQS
            ),
            what="a full batch",
            within_s=15,
        )
        stats = engine.stats()
        assert stats.source == "exact"
        assert list(stats.progress) == [f"c.{n}" for n in range(MAX_NUM_SEQS + 2)]
        for progress in stats.progress.values():
            if progress.phase == "decoding":
                assert progress.prompt_tokens
                past = progress.prompt_tokens + progress.generated_tokens - 1
                assert progress.computed_tokens == past
        await asyncio.gather(*runs)
        steps = engine.take_steps()
        assert steps and all(step.duration_ms > 0 and step.tokens > 0 for step in steps)

    async def test_preemptions_are_counted_and_told(self, engine: Engine) -> None:
        before = engine.stats().preemptions
        # Four of 22 prompt tokens and 450 more need 60 of the 40 blocks.
        runs = [answer(engine, asked(f"c.{n}", max_tokens=450, ignore_eos=True)) for n in range(4)]
        ends = [deltas[-1] for deltas in await asyncio.gather(*runs)]
        assert engine.stats().preemptions > before
        assert sum(end.preemptions for end in ends) == engine.stats().preemptions - before

    async def test_a_full_queue_is_overload_and_no_failure(self, engine: Engine) -> None:
        runs = [
            asyncio.create_task(answer(engine, asked(f"c.{n}", max_tokens=4, ignore_eos=True)))
            for n in range(160)
        ]
        ends = await asyncio.gather(*runs, return_exceptions=True)
        refused = [end for end in ends if isinstance(end, BaseException)]
        assert refused and all(isinstance(end, Overloaded) for end in refused)
        assert all(end.retry_after_ms for end in refused)  # type: ignore[attr-defined]
        assert len(ends) - len(refused) >= 100

    async def test_a_hundred_are_given_up_at_once(self, engine: Engine) -> None:
        runs = [
            asyncio.create_task(answer(engine, asked(f"c.{n}", max_tokens=400, ignore_eos=True)))
            for n in range(100)
        ]
        await eventually(
            lambda: engine.stats().running == MAX_NUM_SEQS, what="a full batch", within_s=15
        )
        await asyncio.gather(*(engine.abort(f"c.{n}") for n in range(100)))
        await asyncio.gather(*runs)
        await eventually(
            lambda: (engine.stats().running, engine.stats().kv_blocks_used) == (0, 0),
            what="free blocks",
            within_s=15,
        )

    async def test_what_vllm_refuses_is_the_requests_fault(self, engine: Engine) -> None:
        with pytest.raises(BadRequest):
            await answer(engine, asked("c.r", prompt=""))
        assert tokens_of(await answer(engine, asked("c.s", max_tokens=3, ignore_eos=True))) == 3


async def test_flags_that_vllm_does_not_know_are_named() -> None:
    engine = made("--no-such-flag 3")
    with pytest.raises(UsageError, match="no-such-flag"):
        await engine.start()
    await engine.close()


async def test_without_exact_mode_the_statistics_serve() -> None:
    engine = made(exact=False)
    await engine.start()
    runs = [
        asyncio.create_task(answer(engine, asked(f"c.{n}", max_tokens=300, ignore_eos=True)))
        for n in range(MAX_NUM_SEQS + 2)
    ]
    await eventually(
        lambda: engine.stats().running == MAX_NUM_SEQS and engine.stats().kv_blocks_used > 0,
        what="a full batch",
        within_s=15,
    )
    assert (engine.stats().source, engine.stats().waiting) == ("reported", 2)
    await asyncio.gather(*runs)
    assert engine.take_steps()
    await engine.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_an_engine_that_is_lost_is_noticed_and_everybody_is_told(how: signal.Signals) -> None:
    engine = made(hang_timeout_s=2)
    await engine.start()
    runs = [
        asyncio.create_task(answer(engine, asked(f"c.{n}", max_tokens=450, ignore_eos=True)))
        for n in range(MAX_NUM_SEQS + 2)
    ]
    await eventually(lambda: engine.stats().running > 0, what="a run", within_s=15)
    victims = active_children()
    assert victims
    for victim in victims:
        assert victim.pid
        os.kill(victim.pid, how)
    async with asyncio.timeout(1.0 if how == signal.SIGKILL else 4.0):
        assert await engine.wait_failed()
    async with asyncio.timeout(5):
        ends = await asyncio.gather(*runs, return_exceptions=True)
    assert all(isinstance(end, EngineFailed) for end in ends)
    with pytest.raises(EngineFailed):
        await answer(engine, asked("c.after"))
    await engine.close()
    assert not active_children()
