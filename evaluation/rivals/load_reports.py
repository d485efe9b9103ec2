"""What a server says of its load, in the shapes that routers ask for. All of it is true and live.

Routers differ in what they poll: SGLang's `/get_load` (tokens held), its newer `/v1/loads` (what
SMG reads), vLLM's gauges in `/metrics`. Each body here is made from the engine at the moment of
the question, so whatever a router believes that is not so, is age.
"""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from pipeline.messages import EngineLimits
from workers.engine import EngineStats

THROUGHPUT_WINDOW_S = 2.0
"""SGLang reports the rate of its last 40 decode steps; that is about as long."""


class Throughput:
    """Tokens generated a second, over the last THROUGHPUT_WINDOW_S."""

    def __init__(self) -> None:
        self._tokens: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, tokens: int) -> None:
        self._tokens.append((time.monotonic(), tokens))
        self._sum += tokens
        self._forget()

    def tokens_a_second(self) -> float:
        self._forget()
        return self._sum / THROUGHPUT_WINDOW_S

    def _forget(self) -> None:
        since = time.monotonic() - THROUGHPUT_WINDOW_S
        while self._tokens and self._tokens[0][0] < since:
            self._sum -= self._tokens.popleft()[1]


@dataclass(frozen=True, slots=True)
class Load:
    """One engine at one moment."""

    running: int
    waiting: int
    waiting_tokens: int
    """Prompt tokens of those that wait."""
    kv_tokens_used: int
    kv_tokens_max: int
    running_max: int
    tokens_a_second: float

    @property
    def requests(self) -> int:
        return self.running + self.waiting

    @property
    def kv_share(self) -> float:
        return self.kv_tokens_used / self.kv_tokens_max

    @classmethod
    def of(
        cls,
        stats: EngineStats,
        limits: EngineLimits,
        prompt_tokens: Mapping[str, int],
        tokens_a_second: float,
    ) -> "Load":
        """From the engine's own numbers; `prompt_tokens` by key of what is in it."""
        waiting = [
            key
            for key, progress in stats.progress.items()
            if progress.phase in ("waiting", "preempted")
        ]
        return cls(
            running=stats.running,
            waiting=stats.waiting,
            waiting_tokens=sum(prompt_tokens.get(key, 0) for key in waiting),
            kv_tokens_used=stats.kv_blocks_used * limits.block_size,
            kv_tokens_max=limits.kv_blocks * limits.block_size,
            running_max=limits.max_num_seqs,
            tokens_a_second=tokens_a_second,
        )


def get_load(load: Load) -> bytes:
    """SGLang's `/get_load`: one entry a data-parallel rank."""
    rank = {
        "dp_rank": 0,
        "num_reqs": load.requests,
        "num_waiting_reqs": load.waiting,
        "num_tokens": load.kv_tokens_used + load.waiting_tokens,
    }
    return msgspec.json.encode([rank])


def v1_loads(load: Load) -> bytes:
    """SGLang's `/v1/loads`."""
    rank = {
        "dp_rank": 0,
        "num_running_reqs": load.running,
        "num_waiting_reqs": load.waiting,
        "num_waiting_uncached_tokens": load.waiting_tokens,
        "num_total_reqs": load.requests,
        "num_used_tokens": load.kv_tokens_used,
        "max_total_num_tokens": load.kv_tokens_max,
        "max_running_requests": load.running_max,
        "token_usage": load.kv_share,
        "gen_throughput": load.tokens_a_second,
        "cache_hit_rate": 0.0,
        "utilization": load.kv_share,
    }
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    return msgspec.json.encode({"timestamp": stamp, "dp_rank_count": 1, "loads": [rank]})


def metrics(load: Load, model: str) -> str:
    """The gauges of vLLM and SGLang that routers read, in Prometheus text."""
    gauges = {
        "vllm:num_requests_running": load.running,
        "vllm:num_requests_waiting": load.waiting,
        "vllm:kv_cache_usage_perc": load.kv_share,
        "vllm:gpu_cache_usage_perc": load.kv_share,
        "sglang:num_running_reqs": load.running,
        "sglang:num_queue_reqs": load.waiting,
        "sglang:num_used_tokens": load.kv_tokens_used,
        "sglang:token_usage": load.kv_share,
        "sglang:gen_throughput": load.tokens_a_second,
    }
    lines = []
    for name, value in gauges.items():
        lines += [f"# TYPE {name} gauge", f'{name}{{model_name="{model}"}} {value:g}']
    return "\n".join(lines) + "\n"
