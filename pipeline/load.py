"""Open-loop load: requests at seeded Poisson times against an absolute clock, each watched.

Arrivals do not wait for answers, and a late send is measured from when it was due: a system that
falls behind is not spared. What is measured is what a client sees.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import numpy as np

from pipeline.client import Client
from pipeline.errors import BusError, Cancelled, Overloaded, RequestError
from pipeline.messages import Request, Result

OUTSTANDING_MAX = 10_000
RESULT_WAIT_S = 2.0
STOP_GRACE_S = 5.0
"""How long a stopped load waits for its cancels to be answered: there may be nobody to answer."""
TTFTS_KEPT = 1_000


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
    instance: str | None = None
    send_lag_ms: float = 0.0
    result: Result | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


@dataclass(slots=True)
class Tally:
    """How far the load has come; the progress display reads it."""

    total: int
    sent: int = 0
    finished: int = 0
    failed: int = 0
    _ttfts_ms: deque[float] = field(default_factory=lambda: deque(maxlen=TTFTS_KEPT))

    def add(self, outcome: Outcome) -> None:
        self.finished += 1
        self.failed += not outcome.ok
        if outcome.ttft_ms is not None:
            self._ttfts_ms.append(outcome.ttft_ms)

    @property
    def ttft_p50_ms(self) -> float | None:
        """Of the last answers."""
        return float(np.median(self._ttfts_ms)) if self._ttfts_ms else None


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
    stop = stop or asyncio.Event()
    started = time.monotonic()
    run = _Run(client, Tally(len(requests)), on_change)
    async with asyncio.TaskGroup() as group:
        for request, offset_s in zip(requests, offsets_s, strict=True):
            if await _due(started + offset_s, stop):
                break
            run.send(group, request, started + offset_s)
        await run.finish(stop)
    return run.outcomes


class _Run:
    """The requests that are out, and what became of the others."""

    def __init__(self, client: Client, tally: Tally, on_change: Callable[[Tally], None]) -> None:
        self._client = client
        self._tally = tally
        self._on_change = on_change
        self._running: dict[asyncio.Task[Outcome], str] = {}
        self.outcomes: list[Outcome] = []

    def send(self, group: asyncio.TaskGroup, request: Request, due_at: float) -> None:
        if len(self._running) >= OUTSTANDING_MAX:
            self._note(Outcome(request.id, error=Overloaded.code))
            return
        task = group.create_task(follow(self._client, request, due_at))
        self._running[task] = request.id
        task.add_done_callback(self._on_done)
        self._tally.sent += 1
        self._on_change(self._tally)

    async def finish(self, stop: asyncio.Event) -> None:
        """Wait for the last answers; once stopped, cancel them first."""
        if not self._running:
            return
        answered = asyncio.create_task(asyncio.wait(list(self._running)))
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({answered, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if self._running:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(STOP_GRACE_S):
                        await self._cancel_all()
                        await answered
        finally:
            answered.cancel()
            stopped.cancel()
        for task in self._running:
            task.cancel()

    async def _cancel_all(self) -> None:
        cancels = (self._client.cancel(request_id) for request_id in self._running.values())
        await asyncio.gather(*cancels, return_exceptions=True)

    def _on_done(self, task: asyncio.Task[Outcome]) -> None:
        request_id = self._running.pop(task)
        if task.cancelled():
            self._note(Outcome(request_id, error=Cancelled.code))
        elif task.exception() is None:  # else the task group ends the load with it
            self._note(task.result())

    def _note(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self._tally.add(outcome)
        self._on_change(self._tally)


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


async def follow(client: Client, request: Request, due_at: float) -> Outcome:
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
                    outcome = replace(
                        outcome,
                        e2e_ms=since_ms(),
                        tokens=event.usage.completion_tokens if event.usage else outcome.tokens,
                        error=event.error.code if event.error else None,
                        instance=event.instance,
                    )
    except RequestError as error:
        return replace(outcome, e2e_ms=since_ms(), error=error.code)
    except BusError as error:
        return replace(outcome, e2e_ms=since_ms(), error=type(error).__name__)
    return await _with_result(client, outcome)


async def _with_result(client: Client, outcome: Outcome) -> Outcome:
    """Read at once, not after the load: results are kept for less time than a load may take."""
    try:
        async with asyncio.timeout(RESULT_WAIT_S):
            return replace(outcome, result=await client.result(outcome.id))
    except (BusError, RequestError, TimeoutError):
        return outcome
