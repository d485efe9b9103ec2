"""The local stack: a NATS server and every component, each its own process, on this machine.

`async with LocalStack(settings) as stack` is entered when a request would be served, and left
when nothing of it runs any more. Its folder holds the NATS store and one log a component.
"""

import asyncio
import contextlib
import fcntl
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from pipeline.bus import Bus, BusSettings
from pipeline.child import Child
from pipeline.errors import BusError, UsageError
from pipeline.log_follow import follow_warnings
from pipeline.nats_server import NatsServer
from pipeline.readiness import Readiness
from pipeline.stack_settings import StackSettings, component_commands
from pipeline.supervisor import Supervisor

__all__ = ["LocalStack", "StackSettings", "run_stack"]

READY_TIMEOUT_S = 90.0  # ten interpreters that start at once on two cores, with room
READY_POLL_S = 0.1
STOP_GRACE_S = 5.0
"""For components that only have to hand back what they hold, and beyond a worker's own grace."""
NATS = "nats"
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class LocalStack:
    """One stack, from start to end. A stack that failed to start has cleaned up after itself.

    `on_warning(component, line)` hears what components log as warning or error once it is ready.
    """

    def __init__(
        self, settings: StackSettings, on_warning: Callable[[str, str], None] | None = None
    ) -> None:
        self.settings = settings
        self._on_warning = on_warning
        self.folder = Path()
        self._supervisor = Supervisor()
        self._chores: list[asyncio.Task[None]] = []
        self._lock: IO[str] | None = None

    @property
    def url(self) -> str:
        return self.nats.url

    @property
    def bus_settings(self) -> BusSettings:
        return BusSettings(url=self.url, prefix=self.settings.prefix)

    @property
    def processes(self) -> Mapping[str, Child]:
        """By name: `nats`, `tagger-0`, `dispatcher-0`, `worker-i0`, `predictor-i0`, …"""
        return self._supervisor.processes

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    async def start(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start everything and wait until it is ready. Raises UsageError."""
        try:
            self._open_folder()
            await self._start_nats()
            for name, command in component_commands(self.settings, self.url).items():
                self._supervisor.add(name, self._spawner(name, command))
            await self._wait_ready(timeout_s)
        except BaseException as error:
            self._end(keep_logs=isinstance(error, UsageError))
            raise
        if self.settings.restart:
            self._chores.append(asyncio.create_task(self._supervisor.watch()))
        if self._on_warning is not None:
            self._chores.append(
                asyncio.create_task(follow_warnings(self._log_files, self._on_warning))
            )

    async def stop(self, hurry: asyncio.Event | None = None) -> None:
        """End everything in order: nothing new comes in, work is handed back, the bus goes last.

        `hurry` set: at once. Nothing is left running, also when this is cancelled.
        """
        for chore in self._chores:
            chore.cancel()
        try:
            await self._stop_role("dispatcher", STOP_GRACE_S, hurry)
            await self._stop_role("tagger", STOP_GRACE_S, hurry)
            await self._stop_role("worker", self.settings.worker_grace_s + STOP_GRACE_S, hurry)
            await self._stop_role("predictor", STOP_GRACE_S, hurry)
            await self._stop_role(NATS, STOP_GRACE_S, hurry)
        finally:
            self._end()

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal one component; after SIGKILL it is gone when this returns."""
        self._supervisor.signal(name, number)

    async def restart(self, name: str) -> None:
        """Start one component anew, with the same command; it may be running or not."""
        await self._supervisor.restart(name, STOP_GRACE_S)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def _open_folder(self) -> None:
        given = self.settings.store_dir
        self.folder = given or Path(tempfile.mkdtemp(prefix="astrolabe-"))
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / "lock").open("w")
        except OSError as error:
            raise UsageError(f"store {self.folder}: {error.strerror}") from error
        try:  # two servers on one store would ruin it; the kernel drops the lock when we die
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another stack runs in {self.folder}") from None

    async def _start_nats(self) -> None:
        self.nats = NatsServer(
            self.folder / NATS, port=self.settings.port, log_file=self.logs / f"{NATS}.log"
        )
        await self.nats.start()
        self._supervisor.add(NATS, self.nats.spawn, self.nats.child)

    def _log_files(self) -> dict[str, Path]:
        return {name: child.log_file for name, child in self.processes.items()}

    def _spawner(self, name: str, command: tuple[str, ...]) -> Callable[[], Child]:
        return lambda: Child(command, self.logs / f"{name}.log")

    async def _wait_ready(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + timeout_s
        services = {"tagger": self.settings.taggers, "dispatcher": self.settings.dispatchers}
        bus = await Bus.connect(self.bus_settings, name="stack")
        try:
            readiness = Readiness(bus, self.settings.instance_names, services)
            await readiness.start()
            while missing := await readiness.missing():
                self._check_running()
                if loop.time() >= give_up_at:
                    raise UsageError(
                        f"not ready after {timeout_s:g} s: {', '.join(missing)}; logs: {self.logs}"
                    )
                await asyncio.sleep(READY_POLL_S)
        except BusError as error:
            raise UsageError(f"the local stack's NATS server: {error}") from error
        finally:
            await bus.close()

    def _check_running(self) -> None:
        for name in self._supervisor.exited():
            child = self.processes[name]
            raise UsageError(
                f"{name} ended with status {child.status} while the stack started; "
                f"log: {child.log_file}\n{child.log_tail()}"
            )

    async def _stop_role(self, role: str, grace_s: float, hurry: asyncio.Event | None) -> None:
        names = [name for name in self.processes if name.split("-")[0] == role]
        await self._supervisor.stop(names, grace_s, hurry)

    def _end(self, *, keep_logs: bool = False) -> None:
        """Kill what is left and tidy up; needs no event loop, so nothing can interrupt it."""
        self._supervisor.kill_all()
        if self._lock is not None:
            self._lock.close()
        if self.settings.store_dir is None and self.folder.name:
            shutil.rmtree(self.folder / NATS if keep_logs else self.folder, ignore_errors=True)


async def run_stack(
    settings: StackSettings,
    on_ready: Callable[[LocalStack], None],
    on_warning: Callable[[str, str], None] | None = None,
) -> None:
    """Run a stack until SIGINT, SIGTERM or SIGHUP; a second one ends it at once.

    Raises UsageError where it does not start.
    """
    told, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if told.is_set() else told).set()

    loop = asyncio.get_running_loop()
    for number in END_SIGNALS:
        loop.add_signal_handler(number, on_signal)
    stack = LocalStack(settings, on_warning)
    starting = asyncio.create_task(stack.start())
    stopping = asyncio.create_task(told.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
            return
        await starting
        try:
            on_ready(stack)
            await stopping
        finally:
            await stack.stop(hurry)
    finally:
        stopping.cancel()
        for number in END_SIGNALS:
            loop.remove_signal_handler(number)
