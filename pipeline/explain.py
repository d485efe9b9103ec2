"""Why a request went where it went, and what came of it: its stored result, for people."""

from rich.console import Group, RenderableType
from rich.table import Table

from pipeline.messages import Candidate, Decision, Result
from pipeline.report import STAGES

DASH = "-"


def explained(result: Result) -> RenderableType:
    """The outcome, the decision with everyone that was asked, and the time of every stage."""
    parts: list[RenderableType] = [_outcome(result)]
    if result.decision is not None:
        parts.append(_decision(result.decision, result))
    parts.append(_stages(result))
    return Group(*parts)


def _outcome(result: Result) -> Table:
    table = Table(title=f"request {result.key}", show_header=False)
    ended = result.finish_reason or DASH
    if result.error is not None:
        ended = f"{result.error.code}: {result.error.message}"
    table.add_row("status", f"{result.status} ({ended})")
    table.add_row("instance", result.instance or DASH)
    runs = f"attempt {result.attempt}"
    if result.crashes:
        runs += f", after {result.crashes} that crashed"
    table.add_row("run", runs)
    if result.usage is not None:
        usage = result.usage
        table.add_row("tokens", f"{usage.prompt_tokens} prompt, {usage.completion_tokens} answer")
    if result.estimate is not None:
        e = result.estimate
        table.add_row(
            "expected answer", f"{e.p50:.0f} tokens ({e.p10:.0f} to {e.p90:.0f}), by {e.source}"
        )
    if result.preemptions:
        table.add_row("preempted", f"{result.preemptions} times")
    return table


def _decision(decision: Decision, result: Result) -> Table:
    title = f"policy {decision.policy}: {decision.reason}"
    if decision.fallback:
        title += " (nobody answered: by the count in flight)"
    table = Table(title=title)
    for name in ("instance", "asked", "TTFT ms", "E2E ms", "preemptions", "cost", "state ms old"):
        table.add_column(name, justify="left" if name in ("instance", "asked") else "right")
    table.add_column("in flight", justify="right")
    for candidate in decision.candidates:
        table.add_row(*_row(candidate), style="bold" if _chosen(candidate, result) else "")
    trace = result.trace
    placed = trace.dispatched_at_ms
    table.add_row(
        "what came",
        "",
        _ms(placed, trace.first_token_at_ms),
        _ms(placed, trace.finished_at_ms),
        str(result.preemptions),
        *("", "", ""),
        style="italic",
    )
    return table


def _chosen(candidate: Candidate, result: Result) -> bool:
    return candidate.instance == result.instance


def _row(candidate: Candidate) -> list[str]:
    prediction = candidate.prediction
    in_flight = str(candidate.in_flight)
    if prediction is None:
        return [candidate.instance, candidate.outcome, *[DASH] * 5, in_flight]
    return [
        candidate.instance,
        candidate.outcome,
        f"{prediction.ttft_ms:,.0f}",
        f"{prediction.e2e_ms:,.0f}",
        str(prediction.preemptions),
        f"{prediction.cost:,.0f}",
        f"{prediction.state_age_ms:,.0f}",
        in_flight,
    ]


def _stages(result: Result) -> Table:
    table = Table(title="where its time went")
    table.add_column("stage")
    table.add_column("ms", justify="right")
    trace = result.trace
    ways = {
        **STAGES,
        "engine to first token": ("engine_accepted_at_ms", "first_token_at_ms"),
        "first token to last": ("first_token_at_ms", "finished_at_ms"),
    }
    for name, (start, end) in ways.items():
        table.add_row(name, _ms(getattr(trace, start), getattr(trace, end)))
    table.add_row("all of it", _ms(trace.sent_at_ms, trace.finished_at_ms), style="bold")
    return table


def _ms(start: float | None, end: float | None) -> str:
    return DASH if start is None or end is None else f"{end - start:,.1f}"
