"""Starts an SGLang server of the worker's own."""

import os
import socket
import tempfile
from pathlib import Path

from pipeline.child import Child
from pipeline.errors import UsageError
from workers.sglang_engine.plugin import SOCKET
from workers.sglang_engine.settings import SGLangSettings


def launch(settings: SGLangSettings, port: int, report_to: str | None) -> Child:
    """Starts it, and does not wait for it. If this worker dies, so does the server.

    Raises UsageError where its interpreter or its log cannot be used.
    """
    log_file = Path(
        settings.log_file or Path(tempfile.gettempdir()) / f"astrolabe-sglang-{os.getpid()}.log"
    )
    environment = {name: value for name, value in os.environ.items() if name != SOCKET}
    if report_to is not None:
        environment[SOCKET] = report_to
    try:
        return Child(settings.command(port), log_file, environment)
    except OSError as error:
        raise UsageError(f"--engine sglang: the server cannot be started: {error}") from error


def free_port() -> int:
    """One of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
