"""How late an event loop is: whatever blocks it shows here, whoever it was."""

import asyncio
from typing import NoReturn

from pipeline.metrics import LOOP_LAG

PERIOD_S = 0.1


async def watch_loop_lag() -> NoReturn:
    """Sleep, and note how much longer it took, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + PERIOD_S
        await asyncio.sleep(PERIOD_S)
        LOOP_LAG.observe(max(0.0, loop.time() - due))
