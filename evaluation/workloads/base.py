"""What a workload is: requests with their true lengths, their times and their estimates."""

from dataclasses import dataclass

from pipeline.messages import LengthEstimate


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request as it reaches the pipeline."""

    at_ms: float
    """From the start of the workload."""
    prompt_tokens: int
    """At least 1."""
    response_tokens: int
    """At least 1: the answer's true length, which only the engine may look at."""
    estimate: LengthEstimate
    """What the tagger would say of the prompt."""
    max_tokens: int | None = None
    """The client's own limit; None where it set none."""
