"""A real SGLang server, started by the adapter. Runs in SGLang's own environment.

A server takes half a minute to start, so most tests share one.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import pytest_asyncio

from engines.folder import SGLANG_ENVIRONMENT, SMOLLM2, TINY_LLAMA
from pipeline.errors import BadRequest, EngineFailed, Overloaded, UsageError
from pipeline.messages import ChatMessage, Request, prompt_text
from tests.waiting import eventually
from tests.workers.conformance import (
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    Conformance,
    answer,
    asked,
    text_of,
    tokens_of,
)
from workers.engine import Engine, EngineRequest
from workers.openai_engine.engine import OpenAIEngine
from workers.openai_engine.settings import OpenAISettings
from workers.sglang_engine.engine import SGLangEngine
from workers.sglang_engine.settings import SGLangSettings

pytestmark = [
    pytest.mark.skipif(find_spec("sglang") is None, reason="SGLang is not in this environment"),
    pytest.mark.skipif(not TINY_LLAMA.is_dir(), reason="`make engines` makes the tiny Llama"),
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
]

ARGS = (
    "--device cpu --dtype bfloat16 --attention-backend torch_native --sampling-backend pytorch "
    "--disable-overlap-schedule --disable-cuda-graph --disable-radix-cache --sleep-on-idle "
    "--mem-fraction-static 0.1 --max-total-tokens 1280 --page-size 16 --chunked-prefill-size 256 "
    f"--context-length {MAX_MODEL_LEN} --max-running-requests {MAX_NUM_SEQS}"
)


def made(args: str = "", model: Path = TINY_LLAMA, **more: object) -> SGLangEngine:
    os.environ.update(SGLANG_ENVIRONMENT)  # of this environment nothing else is run
    settings = SGLangSettings(model=str(model), args=f"{ARGS} {args}", **more)  # type: ignore[arg-type]
    return SGLangEngine(settings)


def url_of(engine: SGLangEngine) -> str:
    assert engine._server is not None
    return engine._server._root


def tree_of(engine: SGLangEngine) -> list[int]:
    """Process ids of its server's whole group."""
    assert engine._child is not None
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if fields[0] != "Z" and int(fields[2]) == engine._child.pid:
            found.append(int(stat.parent.name))
    return found


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared() -> AsyncIterator[tuple[SGLangEngine, object]]:
    engine = made("--max-queued-requests 120")
    ready = await engine.start()
    yield engine, ready
    await engine.close()


class TestSGLang(Conformance):
    async def make(self) -> Engine:
        return made()

    @pytest.fixture
    def engine(self, shared: tuple[SGLangEngine, object]) -> SGLangEngine:
        engine, self.ready = shared  # type: ignore[assignment]
        return engine

    async def test_its_rules_are_its_own(self, engine: SGLangEngine) -> None:
        limits = self.ready.limits
        assert (limits.rules, limits.block_size, limits.kv_blocks) == ("sglang", 16, 80)
        assert limits.max_num_batched_tokens == 256

    async def test_the_scheduler_tells_of_every_request(self, engine: SGLangEngine) -> None:
        runs = [
            asyncio.create_task(answer(engine, asked(f"c.{n}", max_tokens=240, ignore_eos=True)))
            for n in range(MAX_NUM_SEQS + 2)
        ]
        await eventually(
            lambda: (
                [p.phase for p in engine.stats().progress.values()]
                == ["decoding"] * MAX_NUM_SEQS + ["waiting"] * 2
            ),
            what="a full batch",
            within_s=15,
        )
        stats = engine.stats()
        assert stats.source == "exact"
        assert stats.admission is not None and stats.admission.batch_full
        for progress in stats.progress.values():
            if progress.phase == "decoding":
                assert progress.prompt_tokens
                past = progress.prompt_tokens + progress.generated_tokens - 1
                assert progress.computed_tokens == past
        await asyncio.gather(*runs)
        steps = engine.take_steps()
        assert steps and all(step.duration_ms > 0 and step.tokens > 0 for step in steps)

    async def test_a_full_queue_is_overload_and_no_failure(self, engine: SGLangEngine) -> None:
        runs = [
            asyncio.create_task(answer(engine, asked(f"c.{n}", max_tokens=4, ignore_eos=True)))
            for n in range(180)
        ]
        ends = await asyncio.gather(*runs, return_exceptions=True)
        refused = [end for end in ends if isinstance(end, BaseException)]
        assert refused and all(isinstance(end, Overloaded) for end in refused)
        assert all(end.retry_after_ms for end in refused)  # type: ignore[attr-defined]
        assert len(ends) - len(refused) >= 100

    async def test_a_hundred_are_given_up_at_once(self, engine: SGLangEngine) -> None:
        runs = [
            asyncio.create_task(answer(engine, asked(f"c.{n}", max_tokens=400, ignore_eos=True)))
            for n in range(100)
        ]
        # It keeps room for their answers, so fewer run at once than its batch holds.
        await eventually(
            lambda: engine.stats().running > 1 and engine.stats().waiting > 90,
            what="a batch and a queue",
            within_s=15,
        )
        await asyncio.gather(*(engine.abort(f"c.{n}") for n in range(100)))
        await asyncio.gather(*runs)
        await eventually(
            lambda: (engine.stats().running, engine.stats().kv_blocks_used) == (0, 0),
            what="free pages",
            within_s=15,
        )

    async def test_what_sglang_refuses_is_the_requests_fault(self, engine: SGLangEngine) -> None:
        with pytest.raises(BadRequest):
            await answer(engine, asked("c.r", prompt=""))
        assert tokens_of(await answer(engine, asked("c.s", max_tokens=3, ignore_eos=True))) == 3

    async def test_a_running_server_is_attached_to(self, engine: SGLangEngine) -> None:
        """Beside the worker that started it; its load is then polled."""
        other = SGLangEngine(SGLangSettings(url=url_of(engine)))
        ready = await other.start()
        assert ready == self.ready
        runs = [
            asyncio.create_task(answer(other, asked(f"c.{n}", max_tokens=150, ignore_eos=True)))
            for n in range(MAX_NUM_SEQS + 2)
        ]
        await eventually(
            lambda: (other.stats().running, other.stats().waiting) == (MAX_NUM_SEQS, 2),
            what="a full batch",
            within_s=15,
        )
        assert other.stats().source == "reported"
        assert [tokens_of(deltas) for deltas in await asyncio.gather(*runs)] == [150] * 6
        assert other.take_steps()
        await other.close()
        assert tokens_of(await answer(engine, asked("c.r", max_tokens=3, ignore_eos=True))) == 3

    async def test_the_openai_way_to_it_says_the_same(self, engine: SGLangEngine) -> None:
        await same_by_both_ways(engine, [plain(text, 24) for text in ("def main():", "1, 2, 3,")])


def plain(text: str, tokens: int) -> Request:
    return Request(id="r", prompt=text, max_tokens=tokens, temperature=0.0)


def chat(text: str, tokens: int) -> Request:
    messages = [ChatMessage(role="user", content=text)]
    return Request(id="r", messages=messages, max_tokens=tokens, temperature=0.0)


async def same_by_both_ways(engine: SGLangEngine, requests: list[Request]) -> list[str | None]:
    """The same requests through `sglang` and through `openai`, to one server; how they ended."""
    other = OpenAIEngine(OpenAISettings(url=url_of(engine)))
    await other.start()
    ends: list[str | None] = []
    for request in requests:
        one = EngineRequest("c.r", request, prompt_text(request), 8)
        ours, theirs = await answer(engine, one), await answer(other, one)
        assert text_of(ours) == text_of(theirs)
        assert tokens_of(ours) == tokens_of(theirs)
        assert ours[-1].finish_reason == theirs[-1].finish_reason
        assert ours[-1].prompt_tokens == theirs[-1].prompt_tokens
        ends.append(ours[-1].finish_reason)
    await other.close()
    return ends


@pytest.mark.skipif(not SMOLLM2.is_dir(), reason="`make engines` makes SmolLM2")
async def test_a_real_model_ends_alike_by_both_ways() -> None:
    engine = made(model=SMOLLM2)
    await engine.start()
    france = chat("What is the capital of France?", 60)
    ends = await same_by_both_ways(
        engine, [france, plain("The capital of France is", 12), chat("Write a long story.", 30)]
    )
    assert ends == ["stop", "length", "length"]
    deltas = await answer(engine, EngineRequest("c.r", france, prompt_text(france), 8))
    assert "Paris" in text_of(deltas)
    await engine.close()


async def test_flags_that_sglang_does_not_know_are_told() -> None:
    engine = made("--no-such-flag 3")
    with pytest.raises(UsageError, match="no-such-flag"):
        await engine.start()
    await engine.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_server_that_is_lost_is_noticed_and_everybody_is_told(how: signal.Signals) -> None:
    engine = made(hang_timeout_s=2)
    await engine.start()
    runs = [
        asyncio.create_task(answer(engine, asked(f"c.{n}", max_tokens=450, ignore_eos=True)))
        for n in range(MAX_NUM_SEQS + 2)
    ]
    await eventually(lambda: engine.stats().running > 0, what="a run", within_s=15)
    tree = tree_of(engine)
    assert len(tree) >= 3, "SGLang's own processes are in the group"
    for pid in tree:
        os.kill(pid, how)
    async with asyncio.timeout(1.0 if how == signal.SIGKILL else 4.0):
        assert await engine.wait_failed()
    async with asyncio.timeout(5):
        ends = await asyncio.gather(*runs, return_exceptions=True)
    assert all(isinstance(end, EngineFailed) for end in ends)
    with pytest.raises(EngineFailed):
        await answer(engine, asked("c.after"))
    await engine.close()
    assert not tree_of(engine)


async def test_a_scheduler_that_stands_still_is_noticed() -> None:
    """Behind an HTTP side that answers; that its steps are long is not taken for it."""
    engine = made("--incremental-streaming-output", stall_timeout_s=3, exact=False)
    await engine.start()
    run = asyncio.create_task(answer(engine, asked("c.r", max_tokens=450, ignore_eos=True)))
    await eventually(lambda: engine.stats().running > 0, what="a run", within_s=15)
    (scheduler,) = [pid for pid in tree_of(engine) if "scheduler" in name_of(pid)]
    os.kill(scheduler, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.5):
            await engine.wait_failed()
    async with asyncio.timeout(4):
        assert "did nothing" in await engine.wait_failed()
    with pytest.raises(EngineFailed):
        await run
    await engine.close()
    assert not tree_of(engine)


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
