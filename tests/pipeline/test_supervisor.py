"""Processes by name: started, restarted with growing waits, and all of them ended."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from pipeline import supervisor as module
from pipeline.child import Child
from pipeline.supervisor import Supervisor
from tests.waiting import eventually, running

SLEEP = "trap 'echo bye; exit 0' TERM; echo up; while true; do sleep 0.05; done"
STUBBORN = "trap '' TERM; echo up; while true; do sleep 0.05; done"
PARENT = "sleep 600 & echo $!; wait"
FAIL = "echo failing; exit 7"


def shell(path: Path, script: str) -> Callable[[], Child]:
    return lambda: Child(["/bin/sh", "-c", script], path)


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    made = Supervisor()
    yield made
    made.kill_all()
    assert len(made.exited()) == len(made.processes)


async def started(child: Child, line: str = "up") -> None:
    await eventually(lambda: line in child.log_tail(), what=f"{line!r} in the log")


async def test_a_child_writes_to_its_log_and_has_a_session_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of an earlier run\n")
    child = Child(["/bin/sh", "-c", SLEEP], log)
    await started(child)
    assert os.getsid(child.pid) == child.pid
    assert child.running
    await child.stop(5.0)
    assert child.status == 0
    assert child.log_tail() == "up\nbye"
    assert log.read_text().startswith("of an earlier run")
    child.kill()
    child.send(signal.SIGTERM)  # both harmless by now


async def test_what_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    child = Child(["/bin/sh", "-c", STUBBORN], tmp_path / "log")
    await started(child)
    await child.stop(0.2)
    assert child.status == -signal.SIGKILL


async def test_its_own_children_go_too(tmp_path: Path) -> None:
    child = Child(["/bin/sh", "-c", PARENT], tmp_path / "log")
    await eventually(lambda: child.log_tail().strip().isdigit())
    grandchild = int(child.log_tail())
    os.kill(grandchild, 0)
    await child.stop(0.2)
    await eventually(lambda: not running(grandchild), what="the grandchild's end")


async def test_restarts_what_was_killed(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BACK_OFF_FIRST_S", 0.2)
    supervisor.add("a", shell(tmp_path / "a", SLEEP))
    first = supervisor.processes["a"].pid
    watch = asyncio.create_task(supervisor.watch())
    supervisor.signal("a", signal.SIGKILL)
    assert supervisor.exited() == ["a"]
    await eventually(lambda: not supervisor.exited())
    assert supervisor.processes["a"].pid != first
    watch.cancel()


async def test_waits_longer_for_what_keeps_failing(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WATCH_EVERY_S", 0.01)
    monkeypatch.setattr(module, "BACK_OFF_FIRST_S", 0.1)
    log = tmp_path / "a"
    supervisor.add("a", shell(log, FAIL))
    watch = asyncio.create_task(supervisor.watch())
    await asyncio.sleep(1.2)  # starts at about 0, 0.1, 0.3, 0.7, and not before 1.5
    watch.cancel()
    assert log.read_text().count("failing") in (3, 4)


async def test_restart_by_hand(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.add("a", shell(tmp_path / "a", SLEEP))
    await started(supervisor.processes["a"])
    first = supervisor.processes["a"]
    second = await supervisor.restart("a", 5.0)
    assert (first.status, second.running) == (0, True)
    assert supervisor.processes["a"] is second


async def test_stops_several_together(supervisor: Supervisor, tmp_path: Path) -> None:
    for name, script in (("a", SLEEP), ("b", STUBBORN), ("c", SLEEP)):
        supervisor.add(name, shell(tmp_path / name, script))
        await started(supervisor.processes[name])
    await supervisor.stop(["a", "b"], 0.5)
    assert supervisor.exited() == ["a", "b"]
    assert supervisor.processes["a"].status == 0
    assert supervisor.processes["b"].status == -signal.SIGKILL


async def test_hurry_cuts_the_grace_short(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.add("a", shell(tmp_path / "a", STUBBORN))
    await started(supervisor.processes["a"])
    hurry = asyncio.Event()
    stopping = asyncio.create_task(supervisor.stop(["a"], 60.0, hurry))
    await asyncio.sleep(0.1)
    assert not stopping.done()
    hurry.set()
    async with asyncio.timeout(5):
        await stopping
    assert not supervisor.processes["a"].running


async def test_a_name_is_used_once(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.add("a", shell(tmp_path / "a", SLEEP))
    with pytest.raises(ValueError, match="a is there already"):
        supervisor.add("a", shell(tmp_path / "a", SLEEP))
