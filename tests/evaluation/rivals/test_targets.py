"""The whole way, small: a server alone, our own stack, and a router where its wheel is there."""

import asyncio
import json
import math
import subprocess
import sys
import time
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

ROOT = Path(__file__).parents[3]
FAST = Engines(2, time_scale=0.1, seed=1)
SMALL = Plan(FAST, load=0.1, seconds=2, idle_requests=3)


async def test_a_server_alone() -> None:
    idle = await measure_idle(direct, SMALL)
    assert 0 < idle.ttft_p50 <= idle.ttft_p99 <= 10_000
    assert idle.ttft_p50 < idle.e2e_p50


async def test_our_own_stack_from_end_to_end() -> None:
    figures = await measure(pipeline("power_of_two", "hidden"), SMALL)
    assert figures.failed == {}
    assert figures.requests == round(SMALL.rate * SMALL.seconds)
    assert sum(figures.shares.values()) == pytest.approx(1.0)
    assert figures.slowdown_mean >= 0.9  # noise apart, nothing is faster than alone
    assert figures.dispatch_cpu_ms > 0 and figures.engine_cpu_ms > 0
    assert not math.isnan(figures.idle.e2e_p50)


@pytest.mark.parametrize("name", list(ROUTERS))
async def test_a_real_router(name: str) -> None:
    router = ROUTERS[name]
    if not environments.installed(router):
        pytest.skip(f"{router.requirement} is not installed; `make rivals` installs it")
    figures = await measure(routed(router, "round_robin", environments.place(router)), SMALL)
    assert figures.failed == {}
    assert figures.shares == {"i0": pytest.approx(0.5, abs=0.1), "i1": pytest.approx(0.5, abs=0.1)}


def rivals(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "evaluation.rivals", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_command_measures_and_writes(tmp_path: Path) -> None:
    done = rivals(
        *("--only", "least_outstanding", "--part", "load", "--seeds", "1", "--seconds", "1"),
        *("--engines", "2", "--time-scale", "0.1", "--out", str(tmp_path)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [run["case"] for run in summary["runs"]] == ["equal", "one slower"]
    assert all(run["failed"] == {} and run["requests"] > 0 for run in summary["runs"])
    assert summary["rate"]["equal"] > summary["rate"]["one slower"] > 0
    assert (tmp_path / "runs.csv").read_text().count("\n") == 3
    assert "| astrolabe least_outstanding:2 |" in (tmp_path / "load.md").read_text()


def test_a_name_that_nothing_has_is_told_before_anything_is_fetched() -> None:
    done = rivals("--only", "nginx")
    assert done.returncode == 2
    assert "--only nginx: nothing of sglang-router cache_aware" in done.stderr


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
    started = time.monotonic()

    async def send(one: Arrival, due_at: float) -> Seen:
        lag_ms = (time.monotonic() - due_at) * 1000
        assert due_at - started == pytest.approx(one.at_s, abs=0.1)
        await asyncio.sleep(0.3 if one.id.endswith("-0") else 0)
        return Seen(one.id, "whole", send_lag_ms=lag_ms)

    sent = arrivals("a", 50, 0.4, 1)
    seen = await drive(send, sent)
    assert [one.id for one in seen] == [one.id for one in sent]
    assert all(one.send_lag_ms > -1 for one in seen)  # timers may be early by their resolution


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
        environments.install(router, tmp_path)
    assert not environments.installed(router, tmp_path)
    assert not list(tmp_path.iterdir())
