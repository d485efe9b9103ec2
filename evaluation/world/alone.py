"""How long a request takes in an engine that has nothing else to do: what slowdown is against."""

from functools import lru_cache
from math import ceil

from pipeline.messages import EngineLimits, StepTime
from predictor.step_time import StepLoad, step_ms


@lru_cache(maxsize=65_536)
def alone_ms(
    step_time: StepTime,
    overhead_ms: float,
    limits: EngineLimits,
    prompt_tokens: int,
    response_tokens: int,
) -> float:
    """E2E in an empty engine without noise: its prefill in chunks, then one decode step a token."""
    budget = limits.max_num_batched_tokens
    chunks = ceil(prompt_tokens / budget)
    total, computed = 0.0, 0
    for _ in range(chunks):
        chunk = min(budget, prompt_tokens - computed)
        total += step_ms(step_time, StepLoad(chunk, chunk * (computed + chunk / 2), 0, 1))
        computed += chunk
    decodes = response_tokens - 1
    one = step_ms(step_time, StepLoad(1, 0.0, 0, 1))
    read = decodes * prompt_tokens + decodes * (decodes - 1) / 2
    total += decodes * one + step_time.context_ms * read
    return total + (chunks + decodes) * overhead_ms
