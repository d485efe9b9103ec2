"""What is known of vLLM's insides: what its versions may change stands here and in scheduler.py."""

from importlib import import_module
from typing import Any

from pipeline.messages import EngineLimits

EXACT_VERSIONS = ("0.32",)
"""Whose scheduler was read and held against ours step by step."""
SOCKET = "astrolabe_socket"
"""Key in vLLM's `additional_config`, which reaches its engine's process."""
SUFFIX_CHARS = 9
"""vLLM makes a request's id its own by adding a dash and eight hexadecimal digits."""
SCHEDULERS = {
    False: "workers.vllm_engine.scheduler.ReportingScheduler",
    True: "workers.vllm_engine.scheduler.ReportingAsyncScheduler",
}
"""By whether the configuration picked asynchronous scheduling."""


def client_id(request_id: str) -> str:
    """The id that a request was given, of the one that the scheduler knows."""
    return request_id[:-SUFFIX_CHARS]


def knows(version: str) -> bool:
    """Whether the exact mode was made for this version of vLLM."""
    return ".".join(version.split(".")[:2]) in EXACT_VERSIONS


def report_to(vllm_config: Any, path: str) -> None:
    """Have the scheduler report there.

    Raises AttributeError, ImportError, TypeError where vLLM, or its scheduler, is another.
    """
    scheduler = vllm_config.scheduler_config
    if scheduler.scheduler_cls is None:
        scheduler.scheduler_cls = SCHEDULERS[bool(scheduler.async_scheduling)]
    elif not _reports(scheduler.scheduler_cls):
        raise TypeError("a scheduler of your own is configured")
    vllm_config.additional_config = {**vllm_config.additional_config, SOCKET: path}


def _reports(scheduler_cls: Any) -> bool:
    """Whether a scheduler that somebody configured is made of ours."""
    if isinstance(scheduler_cls, str):
        module, _, name = scheduler_cls.rpartition(".")
        scheduler_cls = getattr(import_module(module), name) if module else object
    return hasattr(scheduler_cls, "reports_to_astrolabe")


def limits_of(vllm_config: Any) -> EngineLimits:
    """Of an engine that has started: only then the number of its blocks is known."""
    scheduler, cache = vllm_config.scheduler_config, vllm_config.cache_config
    return EngineLimits(
        rules="vllm",
        block_size=cache.block_size,
        kv_blocks=cache.num_gpu_blocks - 1,  # one is the null block
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_model_len=vllm_config.model_config.max_model_len,
        chunked_prefill=bool(scheduler.enable_chunked_prefill),
        reserve_full_isl=bool(getattr(scheduler, "scheduler_reserve_full_isl", True)),
        watermark=float(getattr(scheduler, "watermark", 0.0)),
    )


def stop_reading(engine: Any) -> None:
    """It is about to end: that its process goes is no news to be logged as an error."""
    handler = getattr(engine, "output_handler", None)
    if handler is not None:
        handler.cancel()


def processes_of(engine: Any) -> list[Any]:
    """The engine's own processes (multiprocessing.Process), for seeing that they end."""
    manager = engine.engine_core.resources.engine_manager
    return list(getattr(manager, "processes", []) or [])
