"""One process of ours: a session of its own, a log file, and an end that is certain.

It is in a session of its own, so Ctrl-C in the terminal reaches only its parent, who ends it in
an orderly way. If the parent itself is killed, the kernel kills the child.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

POLL_S = 0.02
REAP_MAX_S = 5.0  # after SIGKILL only a process stuck in the kernel is still there
TAIL_BYTES_MAX = 16 * 1024

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)  # loaded here: between fork and exec nothing should be


class Child:
    """A started process. Its standard output and error are appended to `log_file`.

    Start it on the main thread: the kernel's "parent death" is that of the thread that forked.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        log_file: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`environment` is ours where it is None."""
        self.log_file = log_file
        parent = os.getpid()

        def die_with_parent() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before the line above
                os._exit(1)

        with log_file.open("ab") as log:
            self._log_from = log.tell()
            self._process = subprocess.Popen(  # noqa: S603  no shell, and the command is ours
                command,
                stdin=subprocess.DEVNULL,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Signal the process itself; harmless when it has ended."""
        self._process.send_signal(number)

    async def wait(self, timeout_s: float) -> bool:
        """Whether it ended within the time."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self.running:
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL for what is left of its group after `grace_s`."""
        try:
            self.send(signal.SIGTERM)
            await self.wait(grace_s)
        finally:
            self.kill()

    def kill(self) -> None:
        """End it and whatever it has started, now; returns when it is reaped."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(REAP_MAX_S)

    def log_tail(self, lines: int = 12) -> str:
        """The last lines that this run wrote."""
        with self.log_file.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_from, end - TAIL_BYTES_MAX))
            text = log.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])
