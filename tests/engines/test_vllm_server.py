"""vLLM's own HTTP server behind the `openai` adapter: conformance, and the same answers as from the
`vllm` adapter. Runs in vLLM's own environment: `make test-engines`."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import pytest_asyncio

from engines.folder import SMOLLM2, TINY_LLAMA, VLLM_ENVIRONMENT
from pipeline.errors import EngineFailed
from pipeline.messages import ChatMessage, Request
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
from workers.vllm_engine.engine import VLLMEngine
from workers.vllm_engine.settings import VLLMSettings

pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not in this environment"),
    pytest.mark.skipif(not SMOLLM2.is_dir(), reason="`make engines` makes the models"),
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.asyncio(loop_scope="module"),
]

ARGS = (
    "--dtype bfloat16 --enforce-eager --block-size 32 --num-gpu-blocks-override 41 "
    f"--kv-cache-memory-bytes 67108864 --max-model-len {MAX_MODEL_LEN} "
    f"--max-num-seqs {MAX_NUM_SEQS} --max-num-batched-tokens 256 --no-enable-prefix-caching"
)
QUESTIONS = (
    "What is the capital of France?",
    "Name three colours.",
    "Write one sentence about the sea.",
    "What is two plus two?",
    "Say hello in Spanish.",
)


@contextlib.contextmanager
def served(model: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """vLLM's server with this model; its address, and its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), *ARGS.split()]
    process = subprocess.Popen(
        command, env={**os.environ, **VLLM_ENVIRONMENT}, start_new_session=True
    )
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def behind(url: str, **more: object) -> OpenAIEngine:
    return OpenAIEngine(OpenAISettings(url=url, max_num_seqs=MAX_NUM_SEQS, **more))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tiny() -> Iterator[str]:
    with served(TINY_LLAMA) as (url, _):
        yield url


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared(tiny: str) -> AsyncIterator[tuple[Engine, object]]:
    engine = behind(tiny)
    ready = await engine.start()
    yield engine, ready
    await engine.close()


class TestBehindOpenAI(Conformance):
    @pytest.fixture(autouse=True)
    def url(self, tiny: str) -> None:
        self._url = tiny

    async def make(self) -> Engine:
        return behind(self._url)

    @pytest.fixture
    def engine(self, shared: tuple[Engine, object]) -> Engine:
        engine, self.ready = shared  # type: ignore[assignment]
        return engine


def chat(number: int) -> EngineRequest:
    question = QUESTIONS[number % len(QUESTIONS)]
    request = Request(
        id=f"q{number}",
        messages=[ChatMessage(role="user", content=question)],
        max_tokens=6 + number,
        temperature=0.0,
    )
    return EngineRequest(f"c.q{number}", request, question, 40)


async def test_both_ways_to_a_real_model_give_the_same_answers() -> None:
    requests = [chat(number) for number in range(20)]
    answers = []
    with served(SMOLLM2) as (url, _):
        for engine in (behind(url), VLLMEngine(VLLMSettings(str(SMOLLM2), args=ARGS))):
            await engine.start()
            # One after the other: in a batch the last bits of a sum depend on who else is in it.
            ends = [await answer(engine, request) for request in requests]
            await engine.close()
            answers.append(
                [(text_of(e), tokens_of(e), e[-1].finish_reason, e[-1].prompt_tokens) for e in ends]
            )
    over_http, in_process = answers
    assert over_http == in_process
    assert {reason for _, _, reason, _ in over_http} == {"stop", "length"}
    assert "Paris" in over_http[10][0]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_server_that_is_lost_is_noticed_and_everybody_is_told(how: signal.Signals) -> None:
    with served(TINY_LLAMA) as (url, process):
        engine = behind(url, hang_timeout_s=1.5)
        await engine.start()
        runs = [
            asyncio.create_task(answer(engine, asked(f"c.{n}", max_tokens=450, ignore_eos=True)))
            for n in range(MAX_NUM_SEQS + 2)
        ]
        await eventually(lambda: engine.stats().running > 0, what="a run", within_s=15)
        os.killpg(process.pid, how)
        async with asyncio.timeout(1.0 if how == signal.SIGKILL else 4.0):
            assert await engine.wait_failed()
        async with asyncio.timeout(5):
            ends = await asyncio.gather(*runs, return_exceptions=True)
        assert all(isinstance(end, EngineFailed) for end in ends)
        await engine.close()
