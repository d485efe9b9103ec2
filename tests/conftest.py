"""Every test that asks for the bus gets a NATS server of its own: it starts in some 30 ms, and
what a test does to it (kill, pause, fill) concerns nobody else."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import structlog

from pipeline.bus import Bus, BusSettings
from pipeline.bus.topology import ensure_topology
from pipeline.nats_server import NatsServer

if find_spec("hypothesis") is not None:  # an engine's own environment has none
    from hypothesis import settings

    # How long an example takes is a matter of what else the machine does.
    settings.register_profile("untimed", parent=settings(), deadline=None)
    settings.load_profile("untimed")

Connect = Callable[..., Awaitable[Bus]]


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """A test that configures logging, as every command does, does it for itself alone."""
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.fixture
async def nats_server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """A fresh server with the stack's own configuration and an empty store."""
    server = NatsServer(tmp_path / "nats")
    await server.start()
    yield server
    server.kill()


@pytest.fixture
def nats_url(nats_server: NatsServer) -> str:
    return nats_server.url


@pytest.fixture
async def connect(nats_url: str) -> AsyncIterator[Connect]:
    """`await connect("name")`: one more connection, closed after the test."""
    opened: list[Bus] = []

    async def open_bus(
        name: str = "test", *, url: str = nats_url, prefix: str = "astrolabe"
    ) -> Bus:
        bus = await Bus.connect(BusSettings(url=url, prefix=prefix), name=name)
        opened.append(bus)
        return bus

    yield open_bus
    for bus in opened:
        await bus.close()


@pytest.fixture
async def bus(connect: Connect) -> Bus:
    """A connected bus whose streams exist."""
    bus = await connect("test")
    await ensure_topology(bus)
    return bus
