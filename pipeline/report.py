"""What a load run showed: figures for machines, tables for people."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from rich.console import Group
from rich.table import Table

from pipeline.load import Outcome
from pipeline.messages import Prediction, Result, Trace

STAGES: dict[str, tuple[str, str]] = {
    "client to accepted": ("sent_at_ms", "accepted_at_ms"),
    "accepted to tagger": ("accepted_at_ms", "tagger_received_at_ms"),
    "tagger (length model not counted)": ("tagger_received_at_ms", "tagged_at_ms"),
    "tagged to dispatcher": ("tagged_at_ms", "dispatcher_received_at_ms"),
    "probes": ("dispatcher_received_at_ms", "probed_at_ms"),
    "dispatch": ("probed_at_ms", "dispatched_at_ms"),
    "inbox (waits while the engine is full)": ("dispatched_at_ms", "worker_received_at_ms"),
    "worker to engine": ("worker_received_at_ms", "engine_accepted_at_ms"),
}
"""From publish to engine accept without a hole: of one request they add up to `added_ms`."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and 99th percentile of some milliseconds; NaN of nothing."""

    p50: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        if not values:
            return cls(float("nan"), float("nan"))
        p50, p99 = np.percentile(values, (50, 99))
        return cls(float(p50), float(p99))

    def as_json(self) -> dict[str, float | None]:
        return {"p50": _number(self.p50), "p99": _number(self.p99)}


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything that is reported of one run."""

    requests: int
    failed: dict[str, int]
    duration_s: float
    ttft_ms: Spread
    e2e_ms: Spread
    tpot_ms: Spread
    send_lag_ms: Spread
    tokens: int
    preemptions: int
    restarts: int
    fallbacks: int
    per_instance: dict[str, int]
    stages_ms: dict[str, Spread]
    added_ms: Spread
    """Client publish to engine accept, less the length model's time."""
    estimate_ms: Spread
    e2e_error_percent: float
    """Median of |predicted - actual| / actual of the chosen instance, from the probe's answer."""
    e2e_bias_percent: float
    """Median of (predicted - actual) / actual: below zero is too hopeful."""
    ttft_error_percent: float
    ttft_bias_percent: float
    ttft_error_ms: float
    length_error_tokens: float
    """Median of |p50 - true length|, where the length was not known beforehand."""


def summarise(outcomes: Sequence[Outcome], duration_s: float) -> Summary:
    """Figures of one run."""
    whole = [outcome for outcome in outcomes if outcome.error is None]
    results = [outcome.result for outcome in whole if outcome.result is not None]
    e2e = _predicted_and_actual_ms(results, "e2e_ms", "finished_at_ms")
    ttft = _predicted_and_actual_ms(results, "ttft_ms", "first_token_at_ms")
    lengths = [
        abs(result.estimate.p50 - result.usage.completion_tokens)
        for result in results
        if result.estimate and result.usage and result.estimate.source != "ignore_eos"
    ]
    return Summary(
        requests=len(outcomes),
        failed=dict(Counter(o.error for o in outcomes if o.error is not None)),
        duration_s=duration_s,
        ttft_ms=Spread.of([o.ttft_ms for o in whole if o.ttft_ms is not None]),
        e2e_ms=Spread.of([o.e2e_ms for o in whole if o.e2e_ms is not None]),
        tpot_ms=Spread.of(
            [
                (o.e2e_ms - o.ttft_ms) / (o.tokens - 1)
                for o in whole
                if o.e2e_ms is not None and o.ttft_ms is not None and o.tokens > 1
            ]
        ),
        send_lag_ms=Spread.of([outcome.send_lag_ms for outcome in outcomes]),
        tokens=sum(outcome.tokens for outcome in outcomes),
        preemptions=sum(result.preemptions for result in results),
        restarts=sum(outcome.attempts - 1 for outcome in outcomes),
        fallbacks=sum(bool(result.decision and result.decision.fallback) for result in results),
        per_instance=dict(
            sorted(Counter(o.instance for o in whole if o.instance is not None).items())
        ),
        stages_ms={
            name: Spread.of([ms for r in results if (ms := stage_ms(r.trace, name)) is not None])
            for name in STAGES
        },
        added_ms=Spread.of([ms for r in results if (ms := added_ms(r.trace)) is not None]),
        estimate_ms=Spread.of(
            [r.trace.estimate_ms for r in results if r.trace.estimate_ms is not None]
        ),
        e2e_error_percent=_median([abs(percent) for percent in _off_percent(e2e)]),
        e2e_bias_percent=_median(_off_percent(e2e)),
        ttft_error_percent=_median([abs(percent) for percent in _off_percent(ttft)]),
        ttft_bias_percent=_median(_off_percent(ttft)),
        ttft_error_ms=_median([abs(predicted - actual) for predicted, actual in ttft]),
        length_error_tokens=_median(lengths),
    )


def added_ms(trace: Trace) -> float | None:
    """The pipeline's own latency of one request: client publish to engine accept, less the time
    in the length model. None for a request of an unknown start or end."""
    if trace.sent_at_ms is None or trace.engine_accepted_at_ms is None:
        return None
    return trace.engine_accepted_at_ms - trace.sent_at_ms - (trace.estimate_ms or 0.0)


def stage_ms(trace: Trace, name: str) -> float | None:
    """Time that one request spent in a stage; None where it was not there."""
    before, after = (getattr(trace, end) for end in STAGES[name])
    if before is None or after is None:
        return None
    model = (trace.estimate_ms or 0.0) if STAGES[name][1] == "tagged_at_ms" else 0.0
    return float(after - before - model)


def _predicted_and_actual_ms(
    results: Sequence[Result],
    predicted: Literal["e2e_ms", "ttft_ms"],
    ended: Literal["finished_at_ms", "first_token_at_ms"],
) -> list[tuple[float, float]]:
    """What the chosen instance answered the probe, and what came of it, both from the probe on."""
    pairs = []
    for result in results:
        prediction = chosen_prediction(result)
        begin, end = result.trace.probed_at_ms, getattr(result.trace, ended)
        if prediction is None or begin is None or end is None:
            continue
        if end > begin:  # two machines' wall clocks: what they make impossible says nothing
            pairs.append((getattr(prediction, predicted), end - begin))
    return pairs


def _off_percent(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """(predicted - actual) / actual of each, in percent."""
    return [(predicted - actual) / actual * 100 for predicted, actual in pairs]


def chosen_prediction(result: Result) -> Prediction | None:
    """What the instance that ran the request had predicted for it."""
    if result.decision is None:
        return None
    for candidate in result.decision.candidates:
        if candidate.instance == result.instance:
            return candidate.prediction
    return None


def as_json(summary: Summary, **more: object) -> dict[str, object]:
    """For bench-results/*.json; `more` is how the run was made."""
    return {
        **more,
        "requests": summary.requests,
        "failed": sum(summary.failed.values()),
        "failed_by_code": summary.failed,
        "duration_s": _number(summary.duration_s),
        "ttft_ms": summary.ttft_ms.as_json(),
        "e2e_ms": summary.e2e_ms.as_json(),
        "tpot_ms": summary.tpot_ms.as_json(),
        "send_lag_ms": summary.send_lag_ms.as_json(),
        "tokens": summary.tokens,
        "preemptions": summary.preemptions,
        "restarts": summary.restarts,
        "fallbacks": summary.fallbacks,
        "per_instance": summary.per_instance,
        "added_latency_ms": {
            **{name: spread.as_json() for name, spread in summary.stages_ms.items()},
            "total": summary.added_ms.as_json(),
        },
        "estimate_ms": summary.estimate_ms.as_json(),
        "prediction": {
            "e2e_error_percent": _number(summary.e2e_error_percent),
            "e2e_bias_percent": _number(summary.e2e_bias_percent),
            "ttft_error_percent": _number(summary.ttft_error_percent),
            "ttft_bias_percent": _number(summary.ttft_bias_percent),
            "ttft_error_ms": _number(summary.ttft_error_ms),
            "length_error_tokens": _number(summary.length_error_tokens),
        },
    }


def write_json(path: Path, report: dict[str, object]) -> None:
    """Write a report, its folder made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")


def render(summary: Summary) -> Group:
    """The tables that a person looks at."""
    failed = ", ".join(f"{count} {code}" for code, count in summary.failed.items()) or "0"
    main = Table(title="What the clients saw", show_header=False)
    main.add_column()
    main.add_column(justify="right")
    rows = {
        "requests": str(summary.requests),
        "failed": failed,
        "TTFT p50 / p99": _pair(summary.ttft_ms),
        "E2E p50 / p99": _pair(summary.e2e_ms),
        "time per output token p50 / p99": _pair(summary.tpot_ms),
        "tokens": f"{summary.tokens} ({summary.tokens / max(summary.duration_s, 1e-9):.0f}/s)",
        "preemptions": str(summary.preemptions),
        "restarts": str(summary.restarts),
        "send lag p50 / p99": _pair(summary.send_lag_ms),
    }
    for name, value in rows.items():
        main.add_row(name, value)
    return Group(main, _instances(summary), _stages(summary), _predictions(summary))


def _instances(summary: Summary) -> Table:
    table = Table(title="Requests per instance")
    for name in summary.per_instance:
        table.add_column(name, justify="right")
    table.add_row(*(str(count) for count in summary.per_instance.values()))
    return table


def _stages(summary: Summary) -> Table:
    table = Table(title="The pipeline's own added latency, ms")
    table.add_column("stage")
    table.add_column("p50", justify="right")
    table.add_column("p99", justify="right")
    for name, spread in summary.stages_ms.items():
        table.add_row(name, f"{spread.p50:.2f}", f"{spread.p99:.2f}")
    table.add_section()
    total = summary.added_ms
    table.add_row("client publish to engine accept", f"{total.p50:.2f}", f"{total.p99:.2f}")
    model = summary.estimate_ms
    table.add_row("length model (not counted above)", f"{model.p50:.2f}", f"{model.p99:.2f}")
    return table


def _predictions(summary: Summary) -> Table:
    table = Table(title="Predictions of the chosen instance", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    if np.isnan(summary.e2e_error_percent):
        table.add_row("E2E and TTFT", "nobody predicted them")  # most policies ask for neither
    else:
        table.add_row("E2E error, median", f"{summary.e2e_error_percent:.1f} %")
        table.add_row("E2E bias, median", f"{summary.e2e_bias_percent:+.1f} %")
        ttft_error = f"{summary.ttft_error_percent:.1f} %, {summary.ttft_error_ms:.0f} ms"
        table.add_row("TTFT error, median", ttft_error)
        table.add_row("TTFT bias, median", f"{summary.ttft_bias_percent:+.1f} %")
    table.add_row("answer length error, median", f"{summary.length_error_tokens:.0f} tokens")
    table.add_row("decisions without an answer", str(summary.fallbacks))
    return table


def _pair(spread: Spread) -> str:
    return f"{spread.p50:,.0f} / {spread.p99:,.0f} ms"


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else float("nan")


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return None if np.isnan(value) else round(value, 3)
