"""What can be set of a vLLM in the worker's process."""

import shlex
from dataclasses import dataclass

from pipeline.errors import UsageError
from predictor.step_time import DEFAULT_PROFILE, PROFILES


@dataclass(frozen=True, slots=True)
class VLLMSettings:
    """Checked when made; raises UsageError. What vLLM has flags for is set by its flags."""

    model: str
    """A folder, or a name that vLLM can find."""
    args: str = ""
    """vLLM's own flags as for its server, `--config FILE.yaml` among them."""
    exact: bool = True
    """Have vLLM's scheduler report every step; needs a version that is known."""
    profile: str = DEFAULT_PROFILE
    """First guess of its step time; the predictor learns the rest from the steps."""
    requests_max: int = 1_024
    """More at once in the engine are refused as overload."""
    hang_timeout_s: float = 10.0
    """An engine that answers nothing for so long, between its steps either, has failed."""

    def __post_init__(self) -> None:
        if not self.model:
            raise UsageError("model: must not be empty")
        if self.profile not in PROFILES:
            raise UsageError(f"profile {self.profile!r}: choose from {', '.join(PROFILES)}")
        if self.requests_max < 1:
            raise UsageError(f"requests_max {self.requests_max}: must be at least 1")
        if self.hang_timeout_s < 0.5:
            raise UsageError(f"hang_timeout_s {self.hang_timeout_s}: must be at least 0.5")
        try:
            shlex.split(self.args)
        except ValueError as error:
            raise UsageError(f"args: {error}") from error

    @property
    def flags(self) -> list[str]:
        """As vLLM's own parser takes them."""
        return ["--model", self.model, *shlex.split(self.args)]
