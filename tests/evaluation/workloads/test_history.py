"""Results that a stack stored become a workload; what is not finished or not complete does not."""

from typing import Any

import pytest

from evaluation.workloads import history
from evaluation.workloads.history import read_history
from evaluation.workloads.presets import workload_of
from pipeline.bus import Bus
from pipeline.codec import encode
from pipeline.errors import UsageError
from pipeline.messages import ErrorBody, LengthEstimate, Result, Trace, Usage


async def stored(bus: Bus, number: int, **changes: Any) -> None:
    """A result like those that workers store: accepted in the order opposite to that of ending."""
    result: dict[str, Any] = {
        "id": f"r{number}",
        "client": "alice",
        "model": "default",
        "status": "done",
        "attempt": 1,
        "text": "t" * 1000,
        "finish_reason": "stop",
        "usage": Usage(prompt_tokens=10 + number, completion_tokens=100 + number),
        "estimate": LengthEstimate(p10=1, p50=50.0 + number, p90=200, source="length-1"),
        "trace": Trace(accepted_at_ms=1e12 - 1000 * number),
    } | changes
    made = Result(**result)
    await bus.jetstream.store(
        bus.subjects.result(made.client, made.id), encode(made), expect_last=0
    )


async def test_results_come_in_the_order_of_acceptance_with_all_that_a_workload_needs(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "READ_AT_ONCE", 3)  # so that it takes several rounds
    for number in range(8):
        await stored(bus, number, finish_reason="length" if number == 2 else "stop")
    table = await read_history(bus)
    assert table.prompt_tokens.tolist() == list(range(17, 9, -1))
    assert table.response_tokens.tolist() == list(range(107, 99, -1))
    assert table.at_ms is not None
    assert table.at_ms.tolist() == [1000 * second for second in range(8)]

    arrivals = workload_of(
        table, requests=8, rate=None, seed=0, estimates="recorded", max_model_len=4096, trace=True
    )
    assert [arrival.estimate.p50 for arrival in arrivals] == list(range(57, 49, -1))
    assert [arrival.max_tokens for arrival in arrivals] == [None] * 5 + [102] + [None] * 2
    assert arrivals[-1].at_ms == 7000


async def test_what_cannot_be_repeated_is_left_out(bus: Bus) -> None:
    await stored(bus, 0)
    await stored(bus, 1, status="error", error=ErrorBody(code="cancelled", message="by client"))
    await stored(bus, 2, usage=None)
    await stored(bus, 3, estimate=None)
    await stored(bus, 4, trace=Trace())
    await stored(bus, 5, usage=Usage(prompt_tokens=5, completion_tokens=0))
    assert (await read_history(bus)).prompt_tokens.tolist() == [10]


async def test_it_can_be_narrowed_and_bounded(bus: Bus) -> None:
    await stored(bus, 0)
    await stored(bus, 1, client="bob")
    await stored(bus, 2, model="llama")
    assert (await read_history(bus, client="bob")).prompt_tokens.tolist() == [11]
    assert (await read_history(bus, model="llama")).prompt_tokens.tolist() == [12]
    assert len(await read_history(bus, limit=2)) == 2
    with pytest.raises(UsageError, match="limit: 0 given"):
        await read_history(bus, limit=0)
    with pytest.raises(UsageError, match="no request that finished among 3 results"):
        await read_history(bus, model="other")


async def test_reading_leaves_nothing_behind(bus: Bus) -> None:
    await stored(bus, 0)
    await read_history(bus)
    info = await bus.jetstream.stream_info(bus.subjects.results_stream)
    assert (info["state"]["messages"], info["state"].get("consumer_count", 0)) == (1, 0)
