"""A chore that repeats. One failure on the bus is a log line, not the end of the component."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

import structlog

from pipeline.errors import BusError

log = structlog.get_logger()


async def every(interval_s: float, chore: Callable[[], Awaitable[None]]) -> NoReturn:
    """Run `chore`, wait, again, until cancelled."""
    while True:
        try:
            await chore()
        except BusError as error:
            log.warning("chore_failed", chore=chore.__qualname__, error=str(error))
        await asyncio.sleep(interval_s)
