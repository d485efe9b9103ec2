"""Waiting for something to become true, with a bound; and whether a process still runs."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path


async def eventually(
    true: Callable[[], bool | Awaitable[bool]], *, within_s: float = 10.0, what: str = "it"
) -> None:
    """Return once `true()` is; AssertionError after `within_s`."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + within_s
    while True:
        answer = true()
        if answer if isinstance(answer, bool) else await answer:
            return
        assert loop.time() < give_up_at, f"{what} was not so within {within_s:g} s"
        await asyncio.sleep(0.01)


def running(pid: int) -> bool:
    """Whether the process exists and is more than a name that nobody has reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
