"""What bounds a server's scheduler, as far as it tells: each kind tells it elsewhere."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import structlog

from pipeline.errors import UsageError
from pipeline.messages import EngineLimits
from predictor.rules.sglang_admission import token_ratios
from workers.openai_engine.load import ServerLoad
from workers.openai_engine.settings import OpenAISettings

log = structlog.get_logger()

GetJson = Callable[[str], Awaitable[Any]]
"""Of a path: the body, or None where the server has no such route."""

DEFAULT_MAX_NUM_SEQS = 256
DEFAULT_BATCHED_TOKENS = 2_048
DEFAULT_BLOCK_SIZE = 16
SLOT_BLOCK_SIZE = 1

Rules = Literal["vllm", "sglang"]


@dataclass(slots=True)
class Told:
    """What a server said of itself."""

    model: str
    rules: Rules = "vllm"
    limits: dict[str, Any] = field(default_factory=dict)
    """Fields of EngineLimits."""


async def read_limits(
    get: GetJson, load: ServerLoad, settings: OpenAISettings
) -> tuple[str, EngineLimits]:
    """The model's name there, and its limits; a setting beats what the server says, and what
    neither tells is a default that the log names. Raises UsageError where there is no model, or
    no maximum length."""
    told = await _told(get, load, settings)
    own = {name: getattr(settings, name) for name in _LIMITS}
    found = {**told.limits, **{name: value for name, value in own.items() if value is not None}}
    rules = settings.rules or told.rules
    if "max_model_len" not in found:
        raise UsageError(
            f"{settings.root} does not tell its model's maximum length: "
            "set --engine-arg max_model_len=…"
        )
    assumed = {
        "max_num_seqs": DEFAULT_MAX_NUM_SEQS,
        "max_num_batched_tokens": DEFAULT_BATCHED_TOKENS,
        "block_size": 1 if rules == "sglang" else DEFAULT_BLOCK_SIZE,
    }
    missing = {name: value for name, value in assumed.items() if name not in found}
    found = {**missing, **found}
    if "kv_blocks" not in found:
        # Enough that it never runs out: what is not known must not make predictions of preemption.
        blocks = -(-found["max_model_len"] * found["max_num_seqs"] // found["block_size"])
        found["kv_blocks"] = missing["kv_blocks"] = blocks
    if missing:
        log.warning(
            "limits_assumed", server=settings.root, **missing, do="set them by --engine-arg"
        )
    return told.model, EngineLimits(rules=rules, **found)


_LIMITS = ("block_size", "kv_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len")


async def _told(get: GetJson, load: ServerLoad, settings: OpenAISettings) -> Told:
    told = await _models(get, settings)
    if load.cache is not None:
        told.limits |= _vllm_cache(load.cache)
    if server_info := await _first(get, "/server_info", "/get_server_info"):
        told.rules = "sglang"
        told.limits |= _sglang(server_info)
    elif props := await get("/props"):
        told.limits |= _llama_cpp(props)
    elif info := await get("/info"):
        told.limits |= _tgi(info)
    return told


async def _models(get: GetJson, settings: OpenAISettings) -> Told:
    listed = await get("/v1/models")
    models = listed.get("data") if isinstance(listed, dict) else None
    if not models:
        if settings.model is None:
            raise UsageError(f"{settings.root}/v1/models names no model: set --engine-arg model=…")
        return Told(settings.model)
    by_name = {str(one.get("id")): one for one in models}
    name = settings.model or next(iter(by_name))
    if name not in by_name:
        raise UsageError(f"model {name}: {settings.root} serves {', '.join(by_name)}")
    told = Told(name)
    told.limits |= _positive({"max_model_len": by_name[name].get("max_model_len")})
    return told


def _vllm_cache(labels: Mapping[str, str]) -> dict[str, int]:
    found = _positive(
        {"block_size": labels.get("block_size"), "kv_blocks": labels.get("num_gpu_blocks")}
    )
    if found.get("kv_blocks", 0) > 1:
        found["kv_blocks"] -= 1  # one block is the null block
    return found


def _sglang(info: Mapping[str, Any]) -> dict[str, Any]:
    page = _positive({"page": info.get("page_size")}).get("page", 1)
    tokens = _positive({"tokens": info.get("max_total_num_tokens")}).get("tokens")
    found: dict[str, Any] = _positive(
        {
            "max_model_len": info.get("context_length"),
            "max_num_seqs": info.get("max_running_requests"),
            "max_num_batched_tokens": info.get("chunked_prefill_size"),
            "max_prefill_tokens": info.get("max_prefill_tokens"),
        }
    )
    found["block_size"] = page
    if tokens is not None:
        found["kv_blocks"] = tokens // page
    conservativeness = info.get("schedule_conservativeness")
    if isinstance(conservativeness, int | float) and 0 <= conservativeness <= 10:
        start, least = token_ratios(float(conservativeness))
        found |= {"new_token_ratio_start": start, "new_token_ratio_min": least}
    return found


def _llama_cpp(props: Mapping[str, Any]) -> dict[str, int]:
    """Slots with a context of their own each; no blocks."""
    generation = props.get("default_generation_settings")
    context = generation.get("n_ctx") if isinstance(generation, dict) else None
    return _positive({"max_model_len": context, "max_num_seqs": props.get("total_slots")})


def _tgi(info: Mapping[str, Any]) -> dict[str, int]:
    found = _positive(
        {
            "max_model_len": info.get("max_total_tokens"),
            "max_num_seqs": info.get("max_batch_size") or info.get("max_concurrent_requests"),
            "max_num_batched_tokens": info.get("max_batch_prefill_tokens"),
        }
    )
    if tokens := _positive({"tokens": info.get("max_batch_total_tokens")}).get("tokens"):
        found |= {"block_size": 1, "kv_blocks": tokens}
    return found


async def _first(get: GetJson, *paths: str) -> Any:
    for path in paths:
        if isinstance(found := await get(path), dict):
            return found
    return None


def _positive(values: Mapping[str, Any]) -> dict[str, int]:
    """Those that are whole numbers above 0, or their text."""
    found = {}
    for name, value in values.items():
        try:
            number = int(value)
        except (TypeError, ValueError):
            continue
        if number > 0:
            found[name] = number
    return found
