"""What an engine's scheduler tells the worker after each step: a datagram over a socket of this
machine.

Beside the engine's own channels, because they carry counts only. A report that finds the socket
full is dropped: the next one tells everything anew. Imported by the engine in its scheduler's
process, so it needs nothing but msgspec.
"""

import contextlib
import socket
from collections.abc import Sequence

import msgspec

from pipeline.messages import Admission, StepSample

ROWS_MAX = 1_024
"""Of each queue; a datagram of that many is some 80 kB."""
BUFFER_BYTES = 1 << 20


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One request between two steps."""

    request_id: str
    prompt_tokens: int
    computed_tokens: int
    generated_tokens: int
    preemptions: int


class Report(msgspec.Struct, frozen=True, array_like=True):
    """The scheduler between two steps; the queues in their order."""

    steps: int
    """Since the start."""
    running: list[Row]
    waiting: list[Row]
    waiting_count: int
    blocks_free: int
    preemptions: int
    """Since the start."""
    step: StepSample | None
    """The step that has just ended; None when a request was ended from outside."""
    admission: Admission | None = None
    """SGLang's."""


_DECODER = msgspec.msgpack.Decoder(Report)


class Sender:
    """The scheduler's end. Never waits and never fails: the engine matters more than a report."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        self._path = path

    def send(self, report: Report) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendto(msgspec.msgpack.encode(report), self._path)


class Receiver:
    """The worker's end."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self.socket.bind(path)

    def take(self, at_most: int = 64) -> Sequence[Report]:
        """What has come, oldest first; a datagram that is no report is skipped."""
        reports = []
        for _ in range(at_most):
            try:
                data = self.socket.recv(BUFFER_BYTES)
            except BlockingIOError:
                break
            with contextlib.suppress(msgspec.DecodeError):
                reports.append(_DECODER.decode(data))
        return reports

    def close(self) -> None:
        self.socket.close()
