"""Two real vLLM behind the whole pipeline: real text comes back, and an engine that dies costs
nothing. Runs where `make engines` has set them up."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from engines.demo import VLLM_ARGS
from engines.folder import TINY_LLAMA, VLLM, VLLM_ENVIRONMENT, is_complete, python_of
from pipeline.client import Client, Completion
from pipeline.messages import Request
from pipeline.stack import LocalStack
from pipeline.stack_settings import StackSettings

pytestmark = [
    pytest.mark.skipif(not is_complete(VLLM), reason="no real vLLM here: `make engines`"),
    pytest.mark.timeout(400),
    pytest.mark.asyncio(loop_scope="module"),
]
READY_S = 300.0


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stack() -> AsyncIterator[LocalStack]:
    os.environ.update(VLLM_ENVIRONMENT)
    settings = StackSettings(
        instances=2,
        engine="vllm",
        engine_python=python_of(VLLM),
        worker_args=(
            *("--engine-arg", f"model={TINY_LLAMA}"),
            *("--engine-arg", f"args={VLLM_ARGS}"),
        ),
        worker_grace_s=2.0,
    )
    stack = LocalStack(settings)
    await stack.start(READY_S)
    yield stack
    await stack.stop()


async def ask(client: Client, name: str, tokens: int) -> Completion:
    request = Request(id=name, prompt=f"def {name}(value):", max_tokens=tokens, ignore_eos=True)
    return await client.complete(request)


async def test_real_text_comes_back_from_both(stack: LocalStack) -> None:
    async with await Client.connect(stack.bus_settings) as client:
        answers = await asyncio.gather(*(ask(client, f"a{n}", 40) for n in range(30)))
    assert {answer.instance for answer in answers} == {"i0", "i1"}
    for answer in answers:
        assert answer.text.strip() and answer.finish_reason == "length"
        assert answer.usage and answer.usage.completion_tokens == 40


async def test_an_engine_that_dies_costs_nothing(stack: LocalStack) -> None:
    async with await Client.connect(stack.bus_settings) as client:
        runs = [asyncio.create_task(ask(client, f"b{n}", 900)) for n in range(40)]
        await asyncio.sleep(1.5)
        worker = stack.processes["worker-i0"]
        for pid in engine_processes(worker.pid):
            os.kill(pid, signal.SIGKILL)
        answers = await asyncio.gather(*runs)
    assert all(a.usage and a.usage.completion_tokens == 900 for a in answers)
    assert any(a.attempt > 1 for a in answers)  # some ran on what died
    for _ in range(100):
        if worker.status is not None:
            break
        await asyncio.sleep(0.1)
    assert worker.status == 1


def engine_processes(worker: int) -> list[int]:
    """vLLM's processes below the worker's."""
    found, parents = [], {worker}
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            name, rest = (folder / "stat").read_text().rsplit(") ", 1)
        except OSError:
            continue
        if int(rest.split()[1]) in parents:
            parents.add(int(folder.name))
            if "VLLM" in name:
                found.append(int(folder.name))
    assert found
    return found
