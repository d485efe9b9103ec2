"""Fewest tokens left to compute: the length estimates without the simulation ("NoSim")."""

from pipeline.messages import Load, Probe


def least_tokens(load: Load, probe: Probe) -> float:
    """Σ max(0, prompt + expected answer - computed) over all requests and the newcomer.

    The newcomer adds the same to every instance; the sum is the work that it would see through.
    """
    return load.outstanding_tokens + probe.prompt_tokens + probe.estimate.p50
