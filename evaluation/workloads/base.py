"""What a workload is: requests with their true lengths, their times and their estimates."""

from dataclasses import dataclass

from evaluation.workloads.lengths import EstimateTable, Floats, LengthTable
from pipeline.errors import UsageError
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


def compose(rows: LengthTable, at_ms: Floats, estimates: EstimateTable) -> list[Arrival]:
    """One Arrival a row; `at_ms` is [n]. Raises UsageError where the three differ in length."""
    quantiles = estimates.quantiles
    if not len(rows) == len(at_ms) == len(quantiles):
        raise UsageError(
            f"{rows.name}: {len(rows)} rows, {len(at_ms)} times, {len(quantiles)} estimates"
        )
    limits = [0] * len(rows) if rows.max_tokens is None else rows.max_tokens.tolist()
    columns = zip(
        at_ms.tolist(),
        rows.prompt_tokens.tolist(),
        rows.response_tokens.tolist(),
        quantiles.tolist(),
        limits,
        strict=True,
    )
    return [
        Arrival(
            at_ms=at,
            prompt_tokens=prompt,
            response_tokens=response,
            estimate=LengthEstimate(p10=p10, p50=p50, p90=p90, source=estimates.source),
            max_tokens=limit or None,
        )
        for at, prompt, response, (p10, p50, p90), limit in columns
    ]
