"""Health checks: what works is well, what hangs, is away or is somebody else's is not."""

import asyncio
import signal
import socket
from pathlib import Path

import pytest

from pipeline.bus import Bus
from pipeline.bus.service import serve
from pipeline.cli import main
from pipeline.errors import UsageError
from pipeline.health import what_is_wrong
from pipeline.instance_name import resolve_instance
from pipeline.nats_server import NatsServer
from pipeline.stack import LocalStack, StackSettings


async def test_a_running_stack_is_well_and_a_frozen_worker_is_not(tmp_path: Path) -> None:
    settings = StackSettings(
        instances=1, store_dir=tmp_path, seed=1, tagger_args=("--estimator=length",)
    )
    async with LocalStack(settings) as stack:
        bus = await Bus.connect(stack.bus_settings, name="test")
        assert await what_is_wrong(bus, "nats") is None
        assert await what_is_wrong(bus, "tagger") is None
        assert await what_is_wrong(bus, "dispatcher") is None
        assert await what_is_wrong(bus, "worker", "i0") is None
        assert await what_is_wrong(bus, "predictor", "i0") is None
        stack.kill("worker-i0", signal.SIGSTOP)
        try:
            await asyncio.sleep(1.1)  # a heartbeat that is on its way
            wrong = await what_is_wrong(bus, "worker", "i0")
        finally:
            stack.kill("worker-i0", signal.SIGCONT)
        assert wrong is not None and "no heartbeat of i0" in wrong
        await bus.close()


async def test_a_component_of_another_host_does_not_count(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = await serve(bus, "tagger", "Estimates answer lengths.")
    assert await what_is_wrong(bus, "tagger") is None
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    wrong = await what_is_wrong(bus, "tagger")
    assert wrong is not None and "elsewhere" in wrong
    await service.stop()


async def test_nobody_there_is_told(bus: Bus) -> None:
    wrong = await what_is_wrong(bus, "predictor", "i7")
    assert wrong is not None and "i7" in wrong
    with pytest.raises(UsageError, match="--instance"):
        await what_is_wrong(bus, "worker")


async def test_the_command_tells_by_its_status(
    nats_server: NatsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    url = nats_server.url
    assert await asyncio.to_thread(main, ["health", "nats", "--url", url]) == 0
    assert await asyncio.to_thread(main, ["health", "nats", "dispatcher", "--url", url]) == 1
    assert "no dispatcher" in capsys.readouterr().out
    nowhere = ["health", "nats", "--url", "nats://127.0.0.1:1"]
    assert await asyncio.to_thread(main, nowhere) == 1
    assert main(["health", "cook"]) == 2


def test_names_come_as_given_from_the_host_or_from_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "worker-3.pool")
    assert resolve_instance("gpu-7") == "gpu-7"
    assert resolve_instance("@hostname") == "worker-3"
    monkeypatch.setattr(socket, "gethostname", lambda: "f00d")
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "10.0.0.3")
    monkeypatch.setattr(
        socket, "gethostbyaddr", lambda ip: ("astrolabe_worker_3.astrolabe_default", [], [ip])
    )
    assert resolve_instance("@dns") == "astrolabe_worker_3"
    for wrong in ("a.b", "", "@nonsense", "x" * 65):
        with pytest.raises(UsageError, match="--instance"):
            resolve_instance(wrong)


def test_a_network_that_knows_no_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.instance_name.DNS_WAIT_S", 0.0)
    monkeypatch.setattr(socket, "gethostname", lambda: "f00d")
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "10.0.0.3")
    monkeypatch.setattr(socket, "gethostbyaddr", lambda ip: ("f00d", [], [ip]))
    with pytest.raises(UsageError, match="no name server has a name for f00d"):
        resolve_instance("@dns")
