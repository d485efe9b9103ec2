"""INFaaS++: most free KV blocks for each running request."""

from pipeline.messages import Load, Probe


def infaas(load: Load, _probe: Probe) -> float:
    """-F / max(R, 1): free blocks F, running requests R. The paper's form of it."""
    return -load.kv_blocks_free / max(load.running, 1)
