"""Whether the server still lives, answers, and does something.

Three things, because they break apart: a process that is gone, an HTTP side that is silent, and a
scheduler that stands still behind an HTTP side that answers. A long step is none of them: SGLang
answers for its load from memory that is shared, whatever its scheduler does meanwhile.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from pipeline.child import Child
from workers.openai_engine.server import Server

LOADS = "/v1/loads?include=core"
LOOK_EVERY_S = 0.1


async def until_lost(
    server: Server, child: Child | None, still_s: Callable[[], float], stall_timeout_s: float
) -> str:
    """Returns why. `still_s` is how long a scheduler with requests has shown nothing."""
    ways: list[Coroutine[Any, Any, str]] = [
        server.watch(LOADS),
        _until_stalled(still_s, stall_timeout_s),
    ]
    if child is not None:
        ways.append(until_ended(child))
    waits = [asyncio.create_task(way) for way in ways]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def until_ended(child: Child) -> str:
    """Returns how the process ended."""
    while True:
        if not child.running:
            return f"SGLang's server ended with status {child.status} (its log: {child.log_file})"
        await asyncio.sleep(LOOK_EVERY_S)


async def _until_stalled(still_s: Callable[[], float], stall_timeout_s: float) -> str:
    while True:
        if still_s() >= stall_timeout_s:
            return f"SGLang's scheduler has requests and did nothing for {stall_timeout_s:g} s"
        await asyncio.sleep(LOOK_EVERY_S)
