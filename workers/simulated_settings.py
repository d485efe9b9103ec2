"""What can be set of the simulated engine, and the limits that follow from it."""

from dataclasses import dataclass
from typing import Literal

import msgspec

from pipeline.errors import UsageError
from pipeline.messages import EngineLimits
from predictor.rules import UnknownRulesError, step_by_step
from predictor.rules.sglang_admission import token_ratios
from predictor.step_time import DEFAULT_PROFILE, LIMITS, PROFILES

SGLANG_CHUNK_TOKENS = 2_048
"""Its own choice for small cards."""
V0_WATERMARK = 0.01

_LIMITS = ("block_size", "kv_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len")
_RANGES: dict[str, tuple[float, float]] = {
    "block_size": (1, 1e6),
    "kv_blocks": (1, 1e9),
    "max_num_seqs": (1, 1e6),
    "max_num_batched_tokens": (1, 1e9),
    "max_model_len": (2, 1e9),
    "schedule_conservativeness": (0, 10),
    "queue_max": (1, 1e6),
    "overhead_ms": (0, 1e6),
    "noise": (0, 2),
    "time_scale": (0, 1000),
    "length_median": (1, 1e6),
    "length_sigma": (0, 3),
}


@dataclass(frozen=True, slots=True)
class SimulatedSettings:
    """Checked when made; raises UsageError. A limit that is None is the profile's own, in the form
    that the rules give it."""

    profile: str = DEFAULT_PROFILE
    model: str = "simulated"
    rules: Literal["vllm", "vllm-v0", "sglang"] = "vllm"
    """Whose scheduler it has. SGLang's has pages of one token unless `block_size` says more."""
    block_size: int | None = None
    kv_blocks: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    schedule_conservativeness: float | None = None
    """SGLang's setting of that name; None is its default, 1."""
    queue_max: int = 256
    """Requests that may wait in the engine; more are refused."""
    overhead_ms: float = 6.0
    """CPU time of every step, which the engine does not report."""
    noise: float = 0.05
    """Sigma of the log-normal factor, of mean 1, on every step."""
    time_scale: float = 1.0
    """1 is real time, 0.1 ten times as fast, 0 as fast as it can be computed."""
    seed: int = 0
    length_median: float = 286.0
    """Of the answers whose request does not state a length; ShareGPT's with Llama-2-7B."""
    length_sigma: float = 0.7

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise UsageError(f"profile {self.profile!r}: choose from {', '.join(PROFILES)}")
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise UsageError(f"{name} {value}: must be from {least:g} to {most:g}")
        if self.schedule_conservativeness is not None and self.rules != "sglang":
            raise UsageError(f"schedule_conservativeness: {self.rules} has no such setting")
        limits = self.limits()
        if limits.kv_blocks * limits.block_size < limits.max_model_len:
            raise UsageError(
                f"kv_blocks {limits.kv_blocks}: {limits.block_size} tokens each do not hold one "
                f"request of max_model_len {limits.max_model_len}; raise it or lower max_model_len"
            )
        try:
            step_by_step(limits)
        except UnknownRulesError as error:
            raise UsageError(str(error)) from error

    def limits(self) -> EngineLimits:
        """The profile's limits with this setting's own in their place."""
        limits = self._by_rules(LIMITS[self.profile])
        own = {name: getattr(self, name) for name in _LIMITS if getattr(self, name) is not None}
        if self.block_size is not None and self.kv_blocks is None:
            own["kv_blocks"] = limits.kv_blocks * limits.block_size // self.block_size
        return msgspec.structs.replace(limits, **own)

    def _by_rules(self, limits: EngineLimits) -> EngineLimits:
        """The same pool as an engine with other rules would have it by default."""
        if self.rules == "vllm":
            return limits
        if self.rules == "vllm-v0":
            return msgspec.structs.replace(limits, rules="vllm-v0", watermark=V0_WATERMARK)
        setting = self.schedule_conservativeness
        start, least = token_ratios(1.0 if setting is None else setting)
        return msgspec.structs.replace(
            limits,
            rules="sglang",
            block_size=1,
            kv_blocks=limits.kv_blocks * limits.block_size,
            max_num_batched_tokens=SGLANG_CHUNK_TOKENS,
            new_token_ratio_start=start,
            new_token_ratio_min=least,
        )
