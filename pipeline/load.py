"""Open-loop load: requests at seeded Poisson times against an absolute clock, each watched.

Arrivals do not wait for answers, and a late send is measured from when it was due: a system that
falls behind is not spared. What is measured is what a client sees.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import numpy as np

from pipeline.client import Client
from pipeline.errors import BusError, RequestError
from pipeline.messages import Request, Result

OUTSTANDING_MAX = 10_000
RESULT_WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request as its client saw it; times are from when it was due."""

    id: str
    error: str | None = None
    """Code of the error that ended it; None for a whole answer."""
    ttft_ms: float | None = None
    e2e_ms: float | None = None
    tokens: int = 0
    attempts: int = 1
    send_lag_ms: float = 0.0
    result: Result | None = None


@dataclass(slots=True)
class Tally:
    """How far the load has come; the progress display reads it."""

    total: int
    sent: int = 0
    finished: int = 0
    failed: int = 0


def arrival_offsets_s(count: int, rate: float, seed: int) -> list[float]:
    """Poisson arrivals: seconds from the start, ascending."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, count)
    return [float(offset) for offset in np.cumsum(gaps)]


async def drive(
    client: Client,
    requests: Sequence[Request],
    offsets_s: Sequence[float],
    *,
    on_change: Callable[[Tally], None] = lambda _tally: None,
    stop: asyncio.Event | None = None,
) -> list[Outcome]:
    """Send each request when it is due and follow it to its end.

    When `stop` is set nothing more is sent and what runs is cancelled. Outcomes come with their
    stored results.
    """
    tally = Tally(len(requests))
    stop = stop or asyncio.Event()
    started = time.monotonic()
    running: set[asyncio.Task[Outcome]] = set()
    outcomes: list[Outcome] = []

    def done(task: asyncio.Task[Outcome]) -> None:
        running.discard(task)
        outcome = task.result()
        outcomes.append(outcome)
        tally.finished += 1
        tally.failed += outcome.error is not None
        on_change(tally)

    for request, offset_s in zip(requests, offsets_s, strict=True):
        if await _due(started + offset_s, stop):
            break
        if len(running) >= OUTSTANDING_MAX:
            outcomes.append(Outcome(request.id, error="overloaded"))
            tally.finished += 1
            tally.failed += 1
            continue
        task = asyncio.create_task(_follow(client, request, started + offset_s))
        running.add(task)
        task.add_done_callback(done)
        tally.sent += 1
        on_change(tally)
    await _finish(client, running, requests[: tally.sent], outcomes, stop)
    return [await _with_result(client, outcome) for outcome in outcomes]


async def _due(at: float, stop: asyncio.Event) -> bool:
    """Wait until the time; True where the load was stopped meanwhile."""
    left_s = at - time.monotonic()
    if left_s <= 0:
        await asyncio.sleep(0)  # behind: send at once, but let the events of others through
        return stop.is_set()
    try:
        async with asyncio.timeout(left_s):
            await stop.wait()
    except TimeoutError:
        return False
    return True


async def _finish(
    client: Client,
    running: set[asyncio.Task[Outcome]],
    sent: Sequence[Request],
    outcomes: Sequence[Outcome],
    stop: asyncio.Event,
) -> None:
    """Wait for the last answers; once stopped, cancel them first."""
    stopped = asyncio.create_task(stop.wait())
    try:
        while running and not stop.is_set():
            await asyncio.wait({*running, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if running:
            over = {outcome.id for outcome in outcomes}
            await asyncio.gather(
                *(client.cancel(request.id) for request in sent if request.id not in over),
                return_exceptions=True,
            )
            await asyncio.wait(running)
    finally:
        stopped.cancel()


async def _follow(client: Client, request: Request, due_at: float) -> Outcome:
    """Send one request and watch its events."""

    def since_ms() -> float:
        return (time.monotonic() - due_at) * 1000

    outcome = Outcome(request.id, send_lag_ms=since_ms())
    try:
        async with aclosing(client.stream(request)) as events:
            async for event in events:
                if event.event == "restart":
                    outcome = replace(outcome, ttft_ms=None, tokens=0)
                elif event.event == "tokens":
                    first = since_ms() if outcome.ttft_ms is None else outcome.ttft_ms
                    outcome = replace(outcome, ttft_ms=first, tokens=outcome.tokens + event.tokens)
                outcome = replace(outcome, attempts=max(outcome.attempts, event.attempt))
                if event.final:
                    tokens = event.usage.completion_tokens if event.usage else outcome.tokens
                    code = event.error.code if event.error else None
                    outcome = replace(outcome, e2e_ms=since_ms(), tokens=tokens, error=code)
    except RequestError as error:
        outcome = replace(outcome, e2e_ms=since_ms(), error=error.code)
    except BusError as error:
        outcome = replace(outcome, e2e_ms=since_ms(), error=type(error).__name__)
    return outcome


async def _with_result(client: Client, outcome: Outcome) -> Outcome:
    try:
        async with asyncio.timeout(RESULT_WAIT_S):
            return replace(outcome, result=await client.result(outcome.id))
    except (BusError, RequestError, TimeoutError):
        return outcome
