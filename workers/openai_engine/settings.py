"""What can be set of a server behind the OpenAI API."""

import os
import re
from dataclasses import dataclass
from typing import Literal

from pipeline.errors import UsageError
from predictor.step_time import DEFAULT_PROFILE, PROFILES

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LEAST = {
    "block_size": 1,
    "kv_blocks": 1,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "max_model_len": 2,
    "requests_max": 1,
    "start_timeout_s": 1,
    "hang_timeout_s": 0.5,
}


@dataclass(frozen=True, slots=True)
class OpenAISettings:
    """Checked when made; raises UsageError. A limit that is None is read from the server."""

    url: str
    """Of the server, with or without /v1."""
    model: str | None = None
    """Its name for the model; None where it serves one."""
    api_key_env: str = "OPENAI_API_KEY"
    """Variable that holds the key; without one no key is sent."""
    profile: str = DEFAULT_PROFILE
    """First guess of its step time; the predictor learns the rest from when tokens come."""
    rules: Literal["vllm", "sglang"] | None = None
    """Whose scheduler it has; None is what the server calls itself, else vLLM's."""
    block_size: int | None = None
    kv_blocks: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    priority: bool = False
    """Send priorities: the server was started with priority scheduling. Lower is sooner, as vLLM
    has it; for SGLang start it with --schedule-low-priority-values-first."""
    requests_max: int = 1_024
    """Connections at once; more requests are refused as overload."""
    start_timeout_s: float = 600.0
    """A large model loads for minutes."""
    hang_timeout_s: float = 5.0
    """A server whose health route is silent for so long has failed."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise UsageError("url: must start with http:// or https://")
        if self.profile not in PROFILES:
            raise UsageError(f"profile {self.profile!r}: choose from {', '.join(PROFILES)}")
        if not _VARIABLE.fullmatch(self.api_key_env):
            raise UsageError("api_key_env: is the name of a variable, not the key")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name} {value}: must be at least {least:g}")

    @property
    def root(self) -> str:
        """Without /v1 and a closing slash."""
        return self.url.rstrip("/").removesuffix("/v1")

    @property
    def api_key(self) -> str | None:
        return os.environ.get(self.api_key_env) or None
