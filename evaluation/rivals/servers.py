"""The engines that routers are put in front of: one server process each, on ports that stay."""

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from pipeline.child import Child
from pipeline.errors import UsageError

HOST = "127.0.0.1"
READY_TIMEOUT_S = 30.0
POLL_S = 0.02
STOP_GRACE_S = 3.0


class EngineServers:
    """Servers i0, i1, …; each can be killed and comes back on its own port."""

    def __init__(self, folder: Path, engine_arguments: Sequence[Sequence[str]]) -> None:
        """`engine_arguments`: NAME=VALUE settings of each server's engine."""
        self._folder = folder
        self._arguments = engine_arguments
        self._ports = [0] * len(engine_arguments)
        self._children: list[Child] = []

    @property
    def names(self) -> list[str]:
        return [f"i{number}" for number in range(len(self._arguments))]

    @property
    def urls(self) -> list[str]:
        return [f"http://{HOST}:{port}" for port in self._ports]

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    @classmethod
    @asynccontextmanager
    async def running(
        cls, folder: Path, engine_arguments: Sequence[Sequence[str]]
    ) -> AsyncGenerator["EngineServers", None]:
        """All of them, ready; nothing of them is left afterwards."""
        servers = cls(folder, engine_arguments)
        try:
            for number in range(len(engine_arguments)):
                servers._children.append(servers._spawn(number))
            for number in range(len(engine_arguments)):
                await servers._wait_ready(number)
            yield servers
        finally:
            await asyncio.gather(*(child.stop(STOP_GRACE_S) for child in servers._children))

    def kill(self, number: int) -> None:
        """As a crash would; it is gone when this returns."""
        self._children[number].send(signal.SIGKILL)
        self._children[number].kill()

    async def restart(self, number: int) -> None:
        """Start a killed one again, where it was; returns when it answers."""
        self._children[number] = self._spawn(number)
        await self._wait_ready(number)

    def _spawn(self, number: int) -> Child:
        name = self.names[number]
        self._port_file(number).unlink(missing_ok=True)
        command = [
            *(sys.executable, "-m", "evaluation.rivals.server", "--name", name),
            *("--port", str(self._ports[number])),
            *("--port-file", str(self._port_file(number))),
        ]
        for setting in self._arguments[number]:
            command += ["--engine-arg", setting]
        return Child(command, self._folder / f"{name}.log")

    async def _wait_ready(self, number: int) -> None:
        """The port file is written once the server listens. Raises UsageError."""
        child, file = self._children[number], self._port_file(number)
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while not file.exists():
                    if not child.running:
                        raise UsageError(
                            f"server {self.names[number]} ended with status {child.status}:\n"
                            f"{child.log_tail()}"
                        )
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise UsageError(
                f"server {self.names[number]} was not ready within {READY_TIMEOUT_S:g} s"
            ) from None
        self._ports[number] = int(file.read_text())

    def _port_file(self, number: int) -> Path:
        return self._folder / f"{self.names[number]}.port"
