"""Llumnix's placement: most free KV blocks for each request, the queue's demand taken off.

Both forms in use. The paper's baseline divides by the running requests only, so its queue is a
demand for blocks and no future member of the batch; Llumnix itself divides by both.
"""

from math import inf

from pipeline.messages import Load, Probe


def llumnix(load: Load, _probe: Probe) -> float:
    """-(F - ΣB) / max(R, 1): free blocks F, blocks ΣB that waiting prompts need, running R."""
    return -_freed(load) / max(load.running, 1)


def llumnix_original(load: Load, _probe: Probe) -> float:
    """-(F - ΣB) / (R + W), with waiting requests W; an idle instance is before all others."""
    requests = load.running + load.waiting
    return -_freed(load) / requests if requests else -inf


def _freed(load: Load) -> int:
    return load.kv_blocks_free - load.waiting_prompt_blocks
