"""What can be set of an SGLang server, started here or running already."""

import os
import re
import shlex
import sys
from dataclasses import dataclass

from pipeline.errors import UsageError
from predictor.step_time import DEFAULT_PROFILE, PROFILES

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LEAST = {
    "requests_max": 1,
    "start_timeout_s": 1,
    "hang_timeout_s": 0.5,
    "stall_timeout_s": 1,
}
INCREMENTAL = "--incremental-streaming-output"
HTTP_LOG = "--log-level-http"
OURS = ("--model-path", "--model", "--host", "--port")
"""Flags that the worker sets."""


@dataclass(frozen=True, slots=True)
class SGLangSettings:
    """Checked when made; raises UsageError. Either `url` or `model` is set."""

    url: str = ""
    """Of a server that runs already."""
    model: str = ""
    """A folder, or a name that SGLang can find: the worker starts the server itself."""
    args: str = ""
    """SGLang's own flags for the server that is started."""
    python: str = sys.executable
    """Interpreter of the environment that has SGLang."""
    log_file: str = ""
    """Where the started server writes; empty is a file in the folder for temporary files."""
    socket: str = ""
    """Of a running server: the path in its variable ASTROLABE_SGLANG_SOCKET, where its scheduler
    reports. A server that is started here is given one."""
    exact: bool = True
    """Have the scheduler of a started server report every step; needs a version that is known."""
    api_key_env: str = "SGLANG_API_KEY"
    """Variable that holds the key; without one no key is sent."""
    profile: str = DEFAULT_PROFILE
    """First guess of its step time; the predictor learns the rest."""
    requests_max: int = 1_024
    """More at once in the engine are refused as overload."""
    start_timeout_s: float = 600.0
    """A large model loads for minutes."""
    hang_timeout_s: float = 5.0
    """A server whose HTTP side is silent for so long has failed."""
    stall_timeout_s: float = 60.0
    """A scheduler that has requests and does nothing for so long has failed. Longer than its
    longest step."""

    def __post_init__(self) -> None:
        if bool(self.url) == bool(self.model):
            raise UsageError(
                "--engine sglang: set --engine-arg url=http://HOST:PORT of a server, "
                "or model=FOLDER to have one started"
            )
        if self.url and not self.url.startswith(("http://", "https://")):
            raise UsageError("url: must start with http:// or https://")
        if self.url and self.args:
            raise UsageError("args: are for a server that is started by model=…")
        if self.model and self.socket:
            raise UsageError("socket: is for a server that runs already; a started one has its own")
        if self.profile not in PROFILES:
            raise UsageError(f"profile {self.profile!r}: choose from {', '.join(PROFILES)}")
        if not _VARIABLE.fullmatch(self.api_key_env):
            raise UsageError("api_key_env: is the name of a variable, not the key")
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise UsageError(f"{name} {getattr(self, name)}: must be at least {least:g}")
        try:
            flags = shlex.split(self.args)
        except ValueError as error:
            raise UsageError(f"args: {error}") from error
        for flag in flags:
            if flag.partition("=")[0] in OURS:
                raise UsageError(f"args: {flag} is set by the worker")

    @property
    def root(self) -> str:
        """Of the server that runs already, without a closing slash."""
        return self.url.rstrip("/")

    @property
    def api_key(self) -> str | None:
        return os.environ.get(self.api_key_env) or None

    def command(self, port: int) -> list[str]:
        """Starts the server."""
        flags = shlex.split(self.args)
        if self.api_key is not None and "--api-key" not in flags:
            flags += ["--api-key", self.api_key]
        if INCREMENTAL not in flags:
            flags.append(INCREMENTAL)  # else every event repeats the whole answer
        if HTTP_LOG not in flags:
            flags += [HTTP_LOG, "warning"]  # else its log is of how often it was looked at
        where = ["--host", "127.0.0.1", "--port", str(port)]
        return [
            self.python,
            "-m",
            "sglang.launch_server",
            "--model-path",
            self.model,
            *where,
            *flags,
        ]
