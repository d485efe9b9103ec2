"""A server that dies, hangs, refuses or is not there: what its worker's engine makes of it."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from pipeline.bus import Bus
from pipeline.child import Child
from pipeline.errors import EngineFailed, Overloaded, UsageError
from tests.waiting import eventually
from tests.workers.conformance import answer, asked, tokens_of
from tests.workers.openai_server import FakeServer, Ways, served
from workers.openai_engine.engine import OpenAIEngine
from workers.openai_engine.settings import OpenAISettings
from workers.simulated_settings import SimulatedSettings

SETTINGS = SimulatedSettings(max_model_len=4_096, time_scale=1.0, noise=0)
LONG = {"max_tokens": 3_000, "ignore_eos": True}


@pytest.fixture
async def server() -> AsyncIterator[tuple[FakeServer, str]]:
    async with served(SETTINGS) as running:
        yield running


async def test_a_server_that_dies_is_noticed_within_a_second_and_its_streams_end() -> None:
    async with served(SETTINGS) as (_, url):
        engine = OpenAIEngine(OpenAISettings(url=url))
        await engine.start()
        run = asyncio.create_task(answer(engine, asked("c.r", **LONG)))  # type: ignore[arg-type]
        await eventually(lambda: engine.stats().running > 0, what="a run")
        died_at = time.monotonic()
    async with asyncio.timeout(5):
        reason = await engine.wait_failed()
    assert time.monotonic() - died_at < 2.0  # the server's own end takes some of it
    assert url in reason
    with pytest.raises(EngineFailed):
        await run
    with pytest.raises(EngineFailed, match="the server at"):
        await answer(engine, asked("c.s"))
    await engine.close()


async def test_a_server_that_hangs_is_noticed(server: tuple[FakeServer, str]) -> None:
    running, url = server
    engine = OpenAIEngine(OpenAISettings(url=url, hang_timeout_s=0.5))
    await engine.start()
    run = asyncio.create_task(answer(engine, asked("c.r", **LONG)))  # type: ignore[arg-type]
    await eventually(lambda: engine.stats().running > 0, what="a run")
    running.hangs.set()
    async with asyncio.timeout(5):
        assert "no answer" in await engine.wait_failed()
    with pytest.raises(EngineFailed):
        await run
    await engine.close()


async def test_one_check_that_fails_is_no_death(server: tuple[FakeServer, str]) -> None:
    running, url = server
    engine = OpenAIEngine(OpenAISettings(url=url))
    await engine.start()
    running.fails_once()
    await asyncio.sleep(0.8)
    assert tokens_of(await answer(engine, asked("c.r", max_tokens=3, ignore_eos=True))) == 3
    await engine.close()


async def test_a_server_that_says_it_is_ill_twice_has_failed(
    server: tuple[FakeServer, str],
) -> None:
    running, url = server
    engine = OpenAIEngine(OpenAISettings(url=url))
    await engine.start()
    running.health = 503
    async with asyncio.timeout(5):
        assert "503" in await engine.wait_failed()
    await engine.close()


async def test_start_waits_for_the_server_and_not_for_ever() -> None:
    engine = OpenAIEngine(OpenAISettings(url="http://127.0.0.1:9", start_timeout_s=1))
    with pytest.raises(UsageError, match="did not serve within 1 s"):
        await engine.start()
    await engine.close()


async def test_the_key_is_sent_and_a_wrong_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "secret")
    ways = Ways(headers={"Authorization": "Bearer secret"})
    async with served(SETTINGS, ways) as (_, url):
        engine = OpenAIEngine(OpenAISettings(url=url, api_key_env="A_KEY"))
        await engine.start()
        await engine.close()
        other = OpenAIEngine(OpenAISettings(url=url, api_key_env="NO_SUCH_KEY"))
        with pytest.raises(UsageError, match="refused the key in NO_SUCH_KEY"):
            await other.start()
        await other.close()


async def test_a_full_queue_is_overload_in_either_form() -> None:
    tight = SimulatedSettings(max_num_seqs=1, queue_max=1, time_scale=1.0, noise=0)
    for ways in (Ways(), Ways(errors_in_the_stream=True)):
        async with served(tight, ways) as (_, url):
            engine = OpenAIEngine(OpenAISettings(url=url, max_num_seqs=1))
            await engine.start()
            runs = []
            for running, waiting in ((1, 0), (1, 1)):
                request = asked(f"c.{waiting}", **LONG)  # type: ignore[arg-type]
                runs.append(asyncio.create_task(answer(engine, request)))
                await eventually(
                    partial(_is_at, engine, running, waiting), what=f"{running} and {waiting}"
                )
            with pytest.raises(Overloaded) as caught:
                await answer(engine, asked("c.one-more"))
            assert caught.value.retry_after_ms
            for run in runs:
                run.cancel()
            await asyncio.gather(*runs, return_exceptions=True)
            await engine.close()


def _is_at(engine: OpenAIEngine, running: int, waiting: int) -> bool:
    stats = engine.stats()
    return (stats.running, stats.waiting) == (running, waiting)


async def test_more_than_the_connections_is_overload(server: tuple[FakeServer, str]) -> None:
    engine = OpenAIEngine(OpenAISettings(url=server[1], requests_max=1))
    await engine.start()
    run = asyncio.create_task(answer(engine, asked("c.a", **LONG)))  # type: ignore[arg-type]
    await eventually(lambda: engine.stats().running > 0, what="a run")
    with pytest.raises(Overloaded, match="connections"):
        await answer(engine, asked("c.b"))
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    await engine.close()


async def test_priorities_are_sent_where_that_was_set(server: tuple[FakeServer, str]) -> None:
    running, url = server
    for priority in (True, False):
        engine = OpenAIEngine(OpenAISettings(url=url, priority=priority))
        await engine.start()
        await answer(engine, asked("c.r", max_tokens=2, priority=-3))
        assert running.bodies[-1].get("priority") == (-3 if priority else None)
        await engine.close()


async def test_ids_towards_the_server_are_of_one_length_and_differ(
    server: tuple[FakeServer, str],
) -> None:
    running, url = server
    engine = OpenAIEngine(OpenAISettings(url=url))
    await engine.start()
    for key in ("c.r", "c.r1", "c.r10"):
        await answer(engine, asked(key, max_tokens=2))
    assert len(set(running.ids)) == len(running.ids)
    assert len({len(one) for one in running.ids}) == 1
    await engine.close()


async def test_a_worker_whose_server_dies_ends_with_status_1_and_says_goodbye(
    bus: Bus, nats_url: str, tmp_path: Path
) -> None:
    """The command as a person runs it."""
    async with served(SETTINGS) as (_, url):
        command = [sys.executable, "-m", "pipeline.cli", "worker", "--instance", "a"]
        command += ["--url", nats_url, "--engine", "openai", "--engine-arg", f"url={url}"]
        worker = Child(command, tmp_path / "worker.log")
        heard: list[bytes] = []
        await bus.subscribe(bus.subjects.heartbeat("a"), lambda m: heard.append(m.data))
        await eventually(lambda: bool(heard), what="a heartbeat", within_s=20)
    await eventually(lambda: not worker.running, what="the worker's end", within_s=15)
    assert worker.status == 1, worker.log_tail()
    assert "openai engine of a: the server at" in worker.log_file.read_text()
    await eventually(lambda: b'"state":"dead"' in heard[-1], what="a goodbye")


def test_no_engine_is_imported_unless_it_is_chosen() -> None:
    code = "import sys, pipeline.cli, workers.engines, workers.worker; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert not {"torch", "vllm", "sglang", "transformers", "onnxruntime"} & modules
    assert not [name for name in modules if name.startswith(("workers.openai", "workers.sim"))]
