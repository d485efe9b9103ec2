"""Whether vLLM's process still lives and answers."""

import asyncio
from typing import Any

from workers.vllm_engine import internals

LOOK_EVERY_S = 0.2
ASK_EVERY_S = 0.5


async def until_lost(engine: Any, hang_timeout_s: float) -> str:
    """Returns why the engine is lost: it died, or it is silent."""
    waits = {asyncio.create_task(_until_dead(engine))}
    waits.add(asyncio.create_task(_until_silent(engine, hang_timeout_s)))
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for wait in waits:
            wait.cancel()


async def _until_dead(engine: Any) -> str:
    while True:
        if engine.errored or not all(p.is_alive() for p in internals.processes_of(engine)):
            return "vLLM's engine process has died"
        await asyncio.sleep(LOOK_EVERY_S)


async def _until_silent(engine: Any, hang_timeout_s: float) -> str:
    while True:
        try:
            async with asyncio.timeout(hang_timeout_s):
                await engine.is_sleeping()  # answered between two steps
        except TimeoutError:
            return f"vLLM's engine was silent for {hang_timeout_s:g} s"
        except Exception as error:  # whatever it is, it came instead of an answer
            return f"vLLM's engine has died: {type(error).__name__}"
        await asyncio.sleep(ASK_EVERY_S)
