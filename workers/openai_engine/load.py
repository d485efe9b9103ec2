"""How full a server is, in its own words: the gauges of vLLM, SGLang, llama.cpp and TGI."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

RUNNING = (
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "llamacpp:requests_processing",
    "tgi_batch_current_size",
)
WAITING = (
    "vllm:num_requests_waiting",
    "sglang:num_queue_reqs",
    "llamacpp:requests_deferred",
    "tgi_queue_size",
)
KV_SHARE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
PREEMPTIONS = ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total")
CACHE = "vllm:cache_config_info"
KNOWN = frozenset((*RUNNING, *WAITING, *KV_SHARE, *PREEMPTIONS, CACHE))


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """What a server tells; None where it does not."""

    running: int | None = None
    waiting: int | None = None
    kv_share: float | None = None
    """Of its KV cache, 0 to 1."""
    preemptions: int | None = None
    """Since its start."""
    cache: Mapping[str, str] | None = None
    """vLLM's labels of its cache's settings."""

    @property
    def tells(self) -> bool:
        return self.running is not None


def read_metrics(text: str) -> ServerLoad:
    """Of a Prometheus exposition; over several ranks counts are summed and shares averaged.

    Raises ValueError where it is none.
    """
    found: dict[str, list[float]] = {}
    cache = None
    for family in text_string_to_metric_families(_of_interest(text)):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.value)
            if sample.name == CACHE:
                cache = sample.labels
    running, waiting = _first(found, RUNNING), _first(found, WAITING)
    share, preemptions = _first(found, KV_SHARE), _first(found, PREEMPTIONS)
    return ServerLoad(
        running=None if running is None else round(sum(running)),
        waiting=None if waiting is None else round(sum(waiting)),
        kv_share=None if share is None else min(1.0, max(0.0, sum(share) / len(share))),
        preemptions=None if preemptions is None else round(sum(preemptions)),
        cache=cache,
    )


def _of_interest(text: str) -> str:
    """The lines that we read: an exposition has thousands, and parsing takes its time."""
    return "".join(
        f"{line}\n"
        for line in text.splitlines()
        if line.partition("{")[0].partition(" ")[0] in KNOWN
    )


def _first(found: Mapping[str, list[float]], names: Iterable[str]) -> list[float] | None:
    return next((found[name] for name in names if name in found), None)


def read_loads(body: object) -> ServerLoad:
    """Of SGLang's /v1/loads. Raises ValueError where it is another thing."""
    ranks = body.get("loads") if isinstance(body, dict) else None
    if not isinstance(ranks, list) or not all(isinstance(rank, dict) for rank in ranks):
        raise ValueError("no list of loads")
    if not ranks:
        return ServerLoad()

    def total(name: str) -> int:
        try:
            return sum(int(rank.get(name) or 0) for rank in ranks)
        except TypeError as error:
            raise ValueError(f"{name} is no number") from error

    most = total("max_total_num_tokens")
    return ServerLoad(
        running=total("num_running_reqs"),
        waiting=total("num_waiting_reqs"),
        kv_share=total("num_used_tokens") / most if most else None,
    )
