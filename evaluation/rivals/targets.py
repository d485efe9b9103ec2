"""What is measured: one server alone, a router in front of servers, or our own pipeline.

Each is a context that is entered when every engine is known to be in reach (a stack says so
itself, a router is tried), and left when nothing of it runs any more.
"""

import asyncio
import itertools
import socket
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from evaluation.rivals.bus_client import BusClient
from evaluation.rivals.engines import Engines
from evaluation.rivals.http_client import HttpClient
from evaluation.rivals.routers import HOST, Router
from evaluation.rivals.seen import Send
from evaluation.rivals.servers import EngineServers
from evaluation.rivals.workload import arrival
from pipeline.child import Child
from pipeline.errors import UsageError
from pipeline.stack import LocalStack, StackSettings

READY_S = 60.0
ROUTER_STOP_S = 10.0
REACH_PER_ENGINE = 3
REACH_PAUSE_S = 0.1
WORKER_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class Target:
    """Somewhere to send requests to."""

    send: Send
    dispatchers: Sequence[int]
    """Processes that carry and place the requests."""
    engines: Sequence[int]
    """Processes with the engines in them."""


Enter = Callable[[Engines, Path], AbstractAsyncContextManager[Target]]
"""Starts a target in front of these engines; its logs go into the folder."""


@asynccontextmanager
async def direct(engines: Engines, folder: Path) -> AsyncGenerator[Target, None]:
    """One ordinary server and nothing in front of it: the floor."""
    async with (
        EngineServers.running(folder, [engines.arguments(engines.count)]) as servers,
        HttpClient.connect(servers.urls[0], engines.ordinary.model) as client,
    ):
        yield Target(client.send, [], servers.pids)


def routed(router: Router, policy: str, environment: Path) -> Enter:
    """A router with one of its policies."""

    @asynccontextmanager
    async def enter(engines: Engines, folder: Path) -> AsyncGenerator[Target, None]:
        arguments = [engines.arguments(number) for number in range(engines.count)]
        async with (
            EngineServers.running(folder, arguments) as servers,
            running_router(router, policy, environment, servers, folder) as (child, url),
            HttpClient.connect(url, engines.ordinary.model) as client,
        ):
            await reach_all(client.send, servers.names)
            yield Target(client.send, [child.pid], servers.pids)

    return enter


@asynccontextmanager
async def running_router(
    router: Router, policy: str, environment: Path, servers: EngineServers, folder: Path
) -> AsyncGenerator[tuple[Child, str], None]:
    """The router's process and its URL; whether it answers yet is for the caller to see."""
    port, metrics_port = free_port(), free_port()
    command = router.command_line(environment, policy, port, metrics_port, servers.urls)
    child = Child(command, folder / "router.log")
    try:
        yield child, f"http://{HOST}:{port}"
    finally:
        await child.stop(ROUTER_STOP_S)


def pipeline(policy: str, lengths: Literal["told", "hidden"]) -> Enter:
    """Our own stack over a real NATS server.

    `told`: `max_tokens` says how long the answer will be, as it does to the routers. `hidden`:
    only the engine knows; the tagger has to guess.
    """

    @asynccontextmanager
    async def enter(engines: Engines, folder: Path) -> AsyncGenerator[Target, None]:
        del folder  # a stack has one of its own
        async with (
            LocalStack(stack_settings(engines, policy)) as stack,
            BusClient.connect(stack.bus_settings, lengths) as client,
        ):
            pids = {name: child.pid for name, child in stack.processes.items()}
            yield Target(
                client.send,
                [pid for name, pid in pids.items() if not name.startswith("worker-")],
                [pid for name, pid in pids.items() if name.startswith("worker-")],
            )

    return enter


def stack_settings(engines: Engines, policy: str) -> StackSettings:
    """A local stack with these engines."""
    common = tuple(
        part for setting in engines.common_arguments() for part in ("--engine-arg", setting)
    )
    settings = StackSettings(
        instances=engines.count,
        policy=policy,
        seed=engines.seed,
        worker_args=common,
        worker_grace_s=WORKER_GRACE_S,
        log_level="warning",
    )
    if engines.first_slower == 1.0:
        return settings
    slow = f"{settings.instance_names[0]}={engines.settings(0).time_scale}"
    command = (sys.executable, "-m", "evaluation.rivals.component", slow)
    return replace(settings, command=command)


async def reach_all(send: Send, names: Sequence[str], within_s: float = READY_S) -> None:
    """Send short requests until every engine has answered one. Raises UsageError.

    Several at once: some rules give a lone request to the same engine every time.
    """
    give_up_at = time.monotonic() + within_s
    missing, said = set(names), ""
    for attempt in itertools.count():
        probes = [
            arrival(f"reach-{attempt}-{number}", 0.0, 8, 4, text_seed=f"{attempt}.{number}")
            for number in range(REACH_PER_ENGINE * len(names))
        ]
        seen = await asyncio.gather(*(send(probe, time.monotonic()) for probe in probes))
        missing -= {one.instance for one in seen if one.instance is not None}
        if not missing:
            return
        said = next((one.detail for one in seen if one.ending != "whole"), said)
        if time.monotonic() >= give_up_at:
            raise UsageError(
                f"{', '.join(sorted(missing))} got no request within {within_s:g} s: "
                f"{said or 'all went elsewhere'}"
            )
        await asyncio.sleep(REACH_PAUSE_S)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
