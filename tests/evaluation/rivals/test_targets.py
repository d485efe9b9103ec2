"""The whole way, small: a server alone, our own stack, and a router where its wheel is there."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import pytest

from evaluation.rivals import environments
from evaluation.rivals.component import with_slowness
from evaluation.rivals.drive import drive
from evaluation.rivals.engines import Engines
from evaluation.rivals.environments import NotInstalledError
from evaluation.rivals.faults import LONG_TOKENS
from evaluation.rivals.measure import Plan, measure, measure_idle
from evaluation.rivals.rigs import our_rig
from evaluation.rivals.routers import ROUTERS
from evaluation.rivals.seen import Seen
from evaluation.rivals.servers import EngineServers
from evaluation.rivals.targets import direct, pipeline, routed, stack_settings
from evaluation.rivals.workload import Arrival, arrival, arrivals
from pipeline.errors import UsageError
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(150)

FAST = Engines(2, time_scale=0.1, seed=1)
SMALL = Plan(FAST, load=0.1, seconds=2, idle_requests=3)


async def test_a_server_alone() -> None:
    idle = await measure_idle(direct, SMALL)
    assert 0 < idle.ttft_p50 <= idle.ttft_p99 <= 10_000
    assert idle.ttft_p50 < idle.e2e_p50


@pytest.mark.parametrize("lengths", ["told", "hidden"])
async def test_our_own_stack_from_end_to_end(lengths: str) -> None:
    figures = await measure(pipeline("power_of_two", lengths), SMALL)  # type: ignore[arg-type]
    assert figures.failed == {}
    assert figures.requests == round(SMALL.rate * SMALL.seconds)
    assert sum(figures.shares.values()) == pytest.approx(1.0)
    assert figures.slowdown_mean >= 0.9  # noise apart, nothing is faster than alone
    assert figures.dispatch_cpu_ms > 0 and figures.engine_cpu_ms > 0
    assert not math.isnan(figures.idle.e2e_p50)


@pytest.mark.parametrize("name", list(ROUTERS))
async def test_a_real_router(name: str) -> None:
    router = ROUTERS[name]
    environment = environments.find(router)
    if environment is None:
        pytest.skip(f"{router.requirement} is not installed; `make rivals` installs it")
    figures = await measure(routed(router, "round_robin", environment), SMALL)
    assert figures.failed == {}
    assert figures.shares == {"i0": pytest.approx(0.5, abs=0.1), "i1": pytest.approx(0.5, abs=0.1)}


async def test_a_killed_server_comes_back_where_it_was(tmp_path: Path) -> None:
    arguments = [FAST.arguments(number) for number in range(2)]
    async with EngineServers.running(tmp_path, arguments) as servers:
        before, pids = servers.urls, servers.pids
        servers.kill(0)
        await servers.restart(0)
        assert servers.urls == before
        assert servers.pids[0] != pids[0] and servers.pids[1] == pids[1]


async def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="i0 ended with status"):
        async with EngineServers.running(tmp_path, [["noise=7"]]):
            pass


async def test_a_cancel_frees_our_engine_and_leaving_does_not(tmp_path: Path) -> None:
    async with our_rig(replace(FAST, time_scale=1.0), tmp_path) as rig:
        leaving = arrival("leave", 0.0, 10, LONG_TOKENS, text_seed="leave")
        await rig.leave(leaving, 0.5, stream=True)
        assert await rig.in_engines() == 1
        cancelled = arrival("cancel", 0.0, 10, LONG_TOKENS, text_seed="cancel")
        assert await rig.cancel(cancelled, 0.5) is not None

        async def only_the_left_one_runs() -> bool:
            return await rig.in_engines() == 1

        await eventually(only_the_left_one_runs, within_s=2, what="the end of the cancelled one")
        assert await rig.end_dispatching() is not None


async def test_arrivals_go_out_when_they_are_due_whatever_becomes_of_others() -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()

    async def send(one: Arrival, due_at: float) -> Seen:
        lag_ms = (loop.time() - due_at) * 1000
        assert due_at - started == pytest.approx(one.at_s, abs=0.1)
        await asyncio.sleep(0.3 if one.id.endswith("-0") else 0)
        return Seen(one.id, "whole", send_lag_ms=lag_ms)

    sent = arrivals("a", 50, 0.4, 1)
    seen = await drive(send, sent)
    assert [one.id for one in seen] == [one.id for one in sent]
    assert all(one.send_lag_ms >= 0 for one in seen)


def test_only_the_slow_instances_worker_is_slowed() -> None:
    worker = ["worker", "--url", "u", "--instance", "i0", "--engine-arg", "time_scale=1"]
    assert with_slowness("i0=3", worker)[-2:] == ["--engine-arg", "time_scale=3"]
    assert with_slowness("i1=3", worker) == worker
    predictor = ["predictor", "--instance", "i0"]
    assert with_slowness("i0=3", predictor) == predictor
    with pytest.raises(UsageError, match="INSTANCE=TIME_SCALE"):
        with_slowness("three", worker)


def test_equal_engines_are_the_ordinary_command() -> None:
    assert "evaluation.rivals.component" not in stack_settings(FAST, "power_of_two").command
    slower = stack_settings(replace(FAST, first_slower=3.0), "power_of_two").command
    assert slower[-1] == f"i0={0.1 * 3}"


def test_a_wheel_that_cannot_be_had_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    router = replace(ROUTERS["smg"], version="0.0.0")
    with pytest.raises(NotInstalledError, match=r"smg==0\.0\.0"):
        environments.make(router, tmp_path)
    assert environments.find(router, tmp_path) is None
    assert not list(tmp_path.iterdir())
