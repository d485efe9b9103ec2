"""A real SGLang behind the whole pipeline: real text comes back, its scheduler's state reaches the
predictor, and a server that dies ends its worker. Runs where `make engines` has set it up."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from engines.folder import SGLANG, SGLANG_ENVIRONMENT, TINY_LLAMA, is_complete, python_of
from pipeline.client import Client, Completion
from pipeline.messages import Request
from pipeline.stack import LocalStack
from pipeline.stack_settings import StackSettings

pytestmark = [
    pytest.mark.skipif(not is_complete(SGLANG), reason="no real SGLang here: `make engines`"),
    pytest.mark.timeout(400),
    pytest.mark.asyncio(loop_scope="module"),
]
READY_S = 300.0
ARGS = (
    "--device cpu --dtype bfloat16 --attention-backend torch_native --sampling-backend pytorch "
    "--disable-overlap-schedule --disable-cuda-graph --disable-radix-cache --sleep-on-idle "
    "--mem-fraction-static 0.1 --max-total-tokens 8192 --page-size 16 --chunked-prefill-size 256 "
    "--context-length 512 --max-running-requests 8"
)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stack() -> AsyncIterator[LocalStack]:
    os.environ.update(SGLANG_ENVIRONMENT)
    arguments = (f"model={TINY_LLAMA}", f"python={python_of(SGLANG)}", f"args={ARGS}")
    settings = StackSettings(
        instances=1,
        engine="sglang",
        worker_args=tuple(part for one in arguments for part in ("--engine-arg", one)),
        worker_grace_s=2.0,
    )
    stack = LocalStack(settings)
    await stack.start(READY_S)
    yield stack
    await stack.stop()


async def ask(client: Client, name: str, tokens: int) -> Completion:
    request = Request(id=name, prompt=f"def {name}(value):", max_tokens=tokens, ignore_eos=True)
    return await client.complete(request)


async def test_real_text_comes_back_after_a_prediction(stack: LocalStack) -> None:
    async with await Client.connect(stack.bus_settings) as client:
        answers = await asyncio.gather(*(ask(client, f"a{n}", 40) for n in range(20)))
    for answer in answers:
        assert answer.text.strip() and answer.finish_reason == "length"
        assert answer.usage and answer.usage.completion_tokens == 40


async def test_a_server_that_dies_ends_its_worker(stack: LocalStack) -> None:
    worker = stack.processes["worker-i0"]
    os.kill(server_of(worker.pid), signal.SIGKILL)
    for _ in range(100):
        if worker.status is not None:
            break
        await asyncio.sleep(0.1)
    assert worker.status == 1


def server_of(worker: int) -> int:
    """The server that this worker has started."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            command = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == worker and b"sglang.launch_server" in command:
            return int(stat.parent.name)
    raise AssertionError("the worker has no server")
