"""Running one component as a process: uvloop, logs, signals, one connection, an orderly end.

A component is a coroutine `serve(bus, stop)`: it starts, works until `stop` is set, and cleans up.
The first SIGTERM or SIGINT sets `stop`, a second one `stop.hurry`, a third one cancels all.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Literal

import structlog
import uvloop

from pipeline.bus import Bus, BusSettings
from pipeline.bus.topology import ensure_topology
from pipeline.errors import BusError, UsageError
from pipeline.loop_lag import watch_loop_lag
from pipeline.metrics import COMPONENT, RECONNECTS

log = structlog.get_logger()

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
START_CONNECT_TIMEOUT_S = 30.0  # in a compose stack the server may come up after us


class Stop(asyncio.Event):
    """Set by the first signal; `hurry` by the second: end now, finish nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.hurry = asyncio.Event()


Serve = Callable[[Bus, Stop], Awaitable[None]]


def configure_logs(level: LogLevel = "info", format_: LogFormat = "console") -> None:
    """structlog to standard error; one event name a line, no prompt text anywhere."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if format_ == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks
            if format_ == "json"
            else structlog.processors.StackInfoRenderer(),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def run_component(role: str, settings: BusSettings, serve: Serve) -> int:
    """Run `serve` until a signal or the loss of the bus; the exit status is returned."""
    structlog.contextvars.bind_contextvars(component=role, pid=os.getpid())
    component, _, name = role.partition("-")
    COMPONENT.labels(component, name or socket.gethostname()).set(1)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(_run(role, settings, serve))
        except asyncio.CancelledError:
            return 130


async def _run(role: str, settings: BusSettings, serve: Serve) -> int:
    stop = Stop()
    this = asyncio.current_task()
    assert this is not None  # noqa: S101  a coroutine that runs is a task

    def on_signal() -> None:
        if stop.hurry.is_set():
            this.cancel()
        elif stop.is_set():
            stop.hurry.set()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)

    try:
        bus = await Bus.connect(settings, name=role, timeout_s=START_CONNECT_TIMEOUT_S)
        await ensure_topology(bus)
    except BusError as error:
        raise UsageError(str(error)) from error
    bus.on_reconnect(RECONNECTS.inc)
    chores = [
        asyncio.create_task(_stop_when_closed(bus, stop)),
        asyncio.create_task(watch_loop_lag()),
    ]
    try:
        await serve(bus, stop)
    finally:
        for chore in chores:
            chore.cancel()
        await asyncio.gather(*chores, return_exceptions=True)
        closed_for_good = bus.closed.is_set()
        await bus.close()
    if closed_for_good:
        log.error("bus_closed", hint="the server ended the connection for good")
        return 1
    return 0


async def _stop_when_closed(bus: Bus, stop: asyncio.Event) -> None:
    """A client that closed never comes back: end, and let the supervisor start us again."""
    await bus.closed.wait()
    stop.set()
