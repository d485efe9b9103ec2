"""Keeps named processes running: starts them, restarts what exits, ends all of them.

It knows nothing of what they do. A process that keeps exiting is restarted after a wait that
doubles each time, and starts from the first wait again once it has stayed up for a while.
"""

import asyncio
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import structlog

from pipeline.child import Child

log = structlog.get_logger()

WATCH_EVERY_S = 0.1
BACK_OFF_FIRST_S = 0.5
BACK_OFF_MAX_S = 30.0
STAYED_UP_S = 30.0


@dataclass(slots=True)
class _Entry:
    spawn: Callable[[], Child]
    child: Child
    started_at: float
    failures: int = 0
    restart_at: float | None = None


class Supervisor:
    """Processes by name, in the order in which they were added."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    @property
    def processes(self) -> Mapping[str, Child]:
        return {name: entry.child for name, entry in self._entries.items()}

    def add(self, name: str, spawn: Callable[[], Child], child: Child | None = None) -> None:
        """Start a process under a new name; `child` is given where it was started already."""
        if name in self._entries:
            raise ValueError(f"{name} is there already")
        now = asyncio.get_running_loop().time()
        self._entries[name] = _Entry(spawn, child or spawn(), now)

    def exited(self) -> list[str]:
        """Names of those that do not run now."""
        return [name for name, entry in self._entries.items() if not entry.child.running]

    def signal(self, name: str, number: signal.Signals) -> None:
        """Signal one process; SIGKILL takes its group and returns when it is gone."""
        child = self._entries[name].child
        if number is signal.SIGKILL:
            child.kill()
        else:
            child.send(number)

    async def restart(self, name: str, grace_s: float) -> Child:
        """End one process, if it still runs, and start it anew."""
        entry = self._entries[name]
        await entry.child.stop(grace_s)
        self._respawn(entry)
        return entry.child

    async def watch(self) -> None:
        """Restart what exits, until cancelled."""
        while True:
            now = asyncio.get_running_loop().time()
            for name, entry in self._entries.items():
                self._look_after(name, entry, now)
            await asyncio.sleep(WATCH_EVERY_S)

    async def stop(
        self, names: Iterable[str], grace_s: float, hurry: asyncio.Event | None = None
    ) -> None:
        """End these together: SIGTERM, `grace_s` (or until `hurry`), SIGKILL."""
        children = [self._entries[name].child for name in names]
        for child in children:
            child.send(signal.SIGTERM)
        ends = asyncio.gather(*(child.wait(grace_s) for child in children))
        waits: list[asyncio.Future[object]] = [asyncio.ensure_future(ends)]
        if hurry is not None:
            waits.append(asyncio.ensure_future(hurry.wait()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            for child in children:
                child.kill()

    def kill_all(self) -> None:
        """End everything now; needs no event loop."""
        for entry in self._entries.values():
            entry.child.kill()

    def _look_after(self, name: str, entry: _Entry, now: float) -> None:
        if entry.child.running:
            if entry.failures and now - entry.started_at > STAYED_UP_S:
                entry.failures = 0
        elif entry.restart_at is None:
            wait_s = min(BACK_OFF_MAX_S, BACK_OFF_FIRST_S * 2**entry.failures)
            entry.failures += 1
            entry.restart_at = now + wait_s
            log.warning(
                "component_exited",
                name=name,
                status=entry.child.status,
                restart_in_s=wait_s,
                log=str(entry.child.log_file),
            )
        elif now >= entry.restart_at:
            self._respawn(entry)
            log.info("component_restarted", name=name, pid=entry.child.pid)

    def _respawn(self, entry: _Entry) -> None:
        entry.child.kill()  # what its group has left behind
        entry.child = entry.spawn()
        entry.started_at = asyncio.get_running_loop().time()
        entry.restart_at = None
