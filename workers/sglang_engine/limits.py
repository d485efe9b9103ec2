"""What an SGLang server says of itself in `/server_info`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from pipeline.errors import UsageError
from pipeline.messages import EngineLimits
from predictor.rules.sglang_admission import token_ratios


class ServerInfo(msgspec.Struct, frozen=True):
    """The part that is read. A negative chunk size is SGLang's way to say that nothing is cut."""

    max_total_num_tokens: int
    max_running_requests: int
    context_length: int | None = None
    page_size: int = 1
    chunked_prefill_size: int | None = None
    max_prefill_tokens: int = 16_384
    schedule_conservativeness: float = 1.0
    schedule_policy: str = "fcfs"
    enable_mixed_chunk: bool = False
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    incremental_streaming_output: bool = False
    dp_size: int = 1
    served_model_name: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """What the adapter needs to know of the server."""

    model: str
    version: str
    limits: EngineLimits
    incremental: bool
    """Streams carry what was added, not the whole answer."""
    priority_sign: int
    """What a priority, where lower is sooner, is multiplied with; 0: it takes none."""
    unlike: Mapping[str, object]
    """Settings under which its scheduler is not as it is simulated."""
    reports: bool
    """Whether one scheduler has all the requests, so that its report is of the whole server."""


def read(info: Any, models: Any) -> Told:
    """`models` is the body of `/v1/models`. Raises UsageError where either is not SGLang's."""
    try:
        told = msgspec.convert(info, ServerInfo)
    except msgspec.ValidationError as error:
        raise UsageError(f"the server's /server_info is not SGLang's: {error}") from error
    try:
        first = models["data"][0]
        name, length = str(first["id"]), int(first["max_model_len"])
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise UsageError("the server's /v1/models names no model with its length") from error
    return Told(
        model=told.served_model_name or name,
        version=told.version,
        limits=_limits(told, told.context_length or length),
        incremental=told.incremental_streaming_output,
        priority_sign=_sign(told),
        unlike=_unlike(told),
        reports=told.dp_size == 1,
    )


def _limits(told: ServerInfo, max_model_len: int) -> EngineLimits:
    start, least = token_ratios(told.schedule_conservativeness)
    chunk = told.chunked_prefill_size or 0
    return EngineLimits(
        rules="sglang",
        block_size=told.page_size,
        kv_blocks=told.max_total_num_tokens // told.page_size,
        max_num_seqs=told.max_running_requests,
        max_num_batched_tokens=chunk if chunk > 0 else told.max_prefill_tokens,
        max_model_len=max_model_len,
        chunked_prefill=chunk > 0,
        max_prefill_tokens=told.max_prefill_tokens,
        new_token_ratio_start=start,
        new_token_ratio_min=least,
    )


def _sign(told: ServerInfo) -> int:
    """SGLang takes the higher one first, unless it was told otherwise."""
    if not told.enable_priority_scheduling:
        return 0
    return 1 if told.schedule_low_priority_values_first else -1


def _unlike(told: ServerInfo) -> dict[str, object]:
    usual = {"schedule_policy": "fcfs", "enable_mixed_chunk": False, "dp_size": 1}
    return {
        name: getattr(told, name) for name, value in usual.items() if getattr(told, name) != value
    }
