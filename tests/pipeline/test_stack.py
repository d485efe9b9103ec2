"""The local stack: ready when it says so, clear when it is not, and gone when it is left."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.bus import Bus
from pipeline.errors import UsageError
from pipeline.stack import LocalStack, StackSettings
from pipeline.stack_settings import component_commands
from pipeline.status import ping_services
from tests.waiting import eventually, running

FAKE = (sys.executable, str(Path(__file__).with_name("fake_component.py")))
SMALL = StackSettings(instances=2, command=FAKE, worker_grace_s=0.5)
NAMES = ["nats", "worker-i0", "predictor-i0", "worker-i1", "predictor-i1", "tagger-0"]
NAMES += ["dispatcher-0"]


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stack that fails keeps its logs: here they go where pytest tidies up."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def left_of(stack: LocalStack) -> list[str]:
    """Processes whose session one of the stack's processes began."""
    sessions = {child.pid for child in stack.processes.values()}
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or os.getsid(int(entry.name)) not in sessions:
                continue
            if running(int(entry.name)):
                found.append((entry / "cmdline").read_text())
        except OSError:  # it ended meanwhile
            continue
    return found


async def assert_gone(stack: LocalStack) -> None:
    await eventually(lambda: not left_of(stack), within_s=2, what="the end of every process")


def test_command_lines() -> None:
    settings = replace(
        StackSettings(instances=2, taggers=1, dispatchers=2, seed=10),
        command=("astrolabe",),
        tagger_args=("--budget-ms", "50"),
        worker_args=("--engine-arg", "noise=0"),
        dispatcher_args=("--probe-timeout-ms", "20"),
    )
    lines = {name: " ".join(command) for name, command in component_commands(settings, "U").items()}
    frame = "--url U --prefix astrolabe --log-level info --log-format console"
    assert lines == {
        "worker-i0": f"astrolabe worker {frame} --instance i0 --engine simulated --grace-s 10 "
        "--engine-arg seed=10 --engine-arg noise=0",
        "predictor-i0": f"astrolabe predictor {frame} --instance i0",
        "worker-i1": f"astrolabe worker {frame} --instance i1 --engine simulated --grace-s 10 "
        "--engine-arg seed=11 --engine-arg noise=0",
        "predictor-i1": f"astrolabe predictor {frame} --instance i1",
        "tagger-0": f"astrolabe tagger {frame} --budget-ms 50",
        "dispatcher-0": f"astrolabe dispatcher {frame} --policy sifted --seed 10 "
        "--probe-timeout-ms 20",
        "dispatcher-1": f"astrolabe dispatcher {frame} --policy sifted --seed 11 "
        "--probe-timeout-ms 20",
    }


@pytest.mark.parametrize(
    ("wrong", "named"),
    [({"instances": 0}, "instances 0"), ({"port": 70000}, "port 70000"), ({"taggers": -1}, "tag")],
)
def test_wrong_settings_are_named(wrong: dict[str, int], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        StackSettings(**wrong)  # type: ignore[arg-type]  # that is the point


async def test_is_ready_when_entered_and_gone_when_left() -> None:
    async with LocalStack(SMALL) as stack:
        assert sorted(stack.processes) == sorted(NAMES)
        bus = await Bus.connect(stack.bus_settings, name="test")
        roles = [service.role for service in await ping_services(bus)]
        assert roles == ["dispatcher", "predictor", "predictor", "tagger"]
        await bus.close()
        folder = stack.folder
        assert sorted(path.stem for path in stack.logs.iterdir()) == sorted(NAMES)
        assert len(left_of(stack)) == len(NAMES)
    await assert_gone(stack)
    assert not folder.exists()
    assert {name: child.status for name, child in stack.processes.items()} == dict.fromkeys(
        NAMES, 0
    )


async def test_a_given_folder_is_kept_and_used_by_one(tmp_path: Path) -> None:
    settings = replace(SMALL, instances=1, store_dir=tmp_path / "store")
    async with LocalStack(settings) as stack:
        with pytest.raises(UsageError, match="another stack runs in"):
            await LocalStack(settings).start()
        assert stack.processes["worker-i0"].running
    assert (tmp_path / "store" / "nats").is_dir()
    assert "ends orderly" in (tmp_path / "store" / "logs" / "worker-i0.log").read_text()


async def test_a_store_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file: Not a directory"):
        await LocalStack(replace(SMALL, store_dir=tmp_path / "file")).start()


async def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} is taken"):
            await LocalStack(replace(SMALL, port=port)).start()


async def test_a_component_that_ends_during_the_start_is_named_with_its_log() -> None:
    stack = LocalStack(replace(SMALL, tagger_args=("--boom",)))
    with pytest.raises(UsageError, match="tagger-0 ended with status 3") as refused:
        await stack.start()
    assert "second line: boom" in str(refused.value)
    assert str(stack.logs / "tagger-0.log") in str(refused.value)
    assert (stack.logs / "tagger-0.log").exists()
    assert not (stack.folder / "nats").exists()
    await assert_gone(stack)


async def test_what_is_not_ready_in_time_is_named() -> None:
    mute = ("--mute",)
    settings = replace(
        SMALL, tagger_args=mute, dispatcher_args=mute, worker_args=mute, predictor_args=mute
    )
    stack = LocalStack(settings)
    named = "tagger, dispatcher, worker-i0, worker-i1, predictor-i0, predictor-i1"
    with pytest.raises(UsageError, match=f"not ready after 1 s: {named}; logs: /"):
        await stack.start(timeout_s=1.0)
    await assert_gone(stack)


async def test_only_what_is_not_ready_is_named() -> None:
    stack = LocalStack(replace(SMALL, instances=1, worker_args=("--mute",)))
    with pytest.raises(UsageError, match="not ready after 5 s: worker-i0; logs: /"):
        await stack.start(timeout_s=5.0)
    await assert_gone(stack)


async def test_cancelling_the_start_leaves_nothing() -> None:
    stack = LocalStack(replace(SMALL, tagger_args=("--mute",)))
    starting = asyncio.create_task(stack.start())
    await eventually(lambda: len(stack.processes) == len(NAMES))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await assert_gone(stack)
    assert not stack.folder.exists()


async def test_kills_and_restarts_one() -> None:
    async with LocalStack(replace(SMALL, instances=1)) as stack:
        stack.kill("worker-i0")
        await asyncio.sleep(1.0)
        assert [n for n in NAMES if n in stack.processes and not stack.processes[n].running] == [
            "worker-i0"
        ]  # nobody asked for a restart
        await stack.restart("worker-i0")
        assert stack.processes["worker-i0"].running
        stack.kill("tagger-0", signal.SIGTERM)
        await eventually(lambda: stack.processes["tagger-0"].status == 0)
    await assert_gone(stack)


async def test_restarts_what_exits_where_told_to_the_server_included() -> None:
    async with LocalStack(replace(SMALL, instances=1, restart=True)) as stack:
        url = stack.url
        stack.kill("tagger-0")
        stack.kill("nats")
        await eventually(lambda: all(child.running for child in stack.processes.values()))
        assert stack.url == url
        bus = await Bus.connect(stack.bus_settings, name="test")

        async def all_answer() -> bool:
            roles = [service.role for service in await ping_services(bus, 0.1)]
            return roles == ["dispatcher", "predictor", "tagger"]

        await eventually(all_answer)
        await bus.close()
    await assert_gone(stack)


async def test_the_stubborn_and_their_children_are_killed() -> None:
    settings = replace(SMALL, instances=1, worker_args=("--stubborn", "--child"))
    stack = LocalStack(settings)
    await stack.start()
    assert any(line.startswith("sleep") for line in left_of(stack))
    hurry = asyncio.Event()
    stopping = asyncio.create_task(stack.stop(hurry))
    await asyncio.sleep(0.5)
    assert not stopping.done()
    hurry.set()
    async with asyncio.timeout(3):
        await stopping
    await assert_gone(stack)
    assert not stack.folder.exists()


async def test_warnings_are_heard() -> None:
    heard: list[tuple[str, str]] = []
    settings = replace(SMALL, instances=1, dispatcher_args=("--warn",))
    async with LocalStack(settings, lambda name, line: heard.append((name, line))):
        await eventually(lambda: len(heard) > 1)
    assert {name for name, _ in heard} == {"dispatcher-0"}
    assert all("odd_thing" in line for _, line in heard)


UP = """
    import uvloop
    from pipeline.stack import StackSettings, run_stack
    settings = StackSettings(instances=1, command={command!r}, worker_args={worker_args!r},
                             worker_grace_s=30)
    def ready(stack):
        print(stack.folder, *[child.pid for child in stack.processes.values()], flush=True)
    uvloop.run(run_stack(settings, ready))
"""


@pytest.mark.parametrize(
    ("numbers", "worker_args", "status"),
    [
        ([signal.SIGINT], (), 0),
        ([signal.SIGTERM], (), 0),
        ([signal.SIGINT, signal.SIGINT], ("--stubborn",), 0),
        ([signal.SIGKILL], (), -signal.SIGKILL),
    ],
)
async def test_signals_end_all_of_it(
    numbers: list[signal.Signals], worker_args: tuple[str, ...], status: int
) -> None:
    program = textwrap.dedent(UP.format(command=FAKE, worker_args=worker_args))
    with subprocess.Popen(  # noqa: ASYNC220  it is one fork
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as up:
        assert up.stdout is not None
        folder, *pids = (await asyncio.to_thread(up.stdout.readline)).split()
        assert len(pids) == 5
        for number in numbers:
            up.send_signal(number)
            await asyncio.sleep(0.7)
        await eventually(lambda: up.poll() is not None, within_s=5, what="the supervisor's end")
        assert up.returncode == status
    await eventually(lambda: not any(running(int(pid)) for pid in pids), within_s=3)
    # Killed outright, nobody is there to tidy up.
    assert os.path.exists(folder) == (status != 0)  # noqa: ASYNC240, PTH110  one look


async def test_the_real_components_become_ready_and_end_in_order() -> None:
    settings = StackSettings(instances=2, seed=1, worker_grace_s=2.0)
    async with LocalStack(settings) as stack:
        assert sorted(stack.processes) == sorted(NAMES)
    await assert_gone(stack)
    assert {child.status for child in stack.processes.values()} == {0}
