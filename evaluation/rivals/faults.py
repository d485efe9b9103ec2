"""What a client sees when something breaks: one case after another, the same for every rig."""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evaluation.rivals.drive import drive
from evaluation.rivals.engines import Engines
from evaluation.rivals.rigs import EnterRig, Rig
from evaluation.rivals.seen import Seen
from evaluation.rivals.workload import SHORT_PROMPTS, Arrival, Lengths, arrival, arrivals

ENGINES = 2
LONG_TOKENS = 600
LEAVE_AFTER_S = 1.0
FREED_WITHIN_S = 4.0
"""An engine that still works on a request this long after its client left goes on with it."""
EMPTY_WITHIN_S = 30.0
IN_FLIGHT = 8
IN_FLIGHT_TOKENS = 300
KILL_AFTER_S = 1.5
AFTER_KILL = 100
AFTER_KILL_RATE = 20.0
BACK_WITHIN_S = 90.0
BACK_EVERY_S = 0.25
DOWN_WITHIN_S = 4.0
RETURN_AFTER_S = 1.0
TERM_IN_FLIGHT = 4
TERM_TOKENS = 150
TERM_AFTER_S = 0.5
PATIENCE_S = 40.0
POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class InFlight:
    """What became of requests that were running when something was ended."""

    endings: Mapping[str, int]
    restarts: int
    """How many of them began anew on another engine."""
    short: int
    """How many were called whole, and had fewer tokens than were asked for."""
    e2e_max_s: float

    @classmethod
    def of(cls, seen: list[Seen], tokens: int) -> "InFlight":
        return cls(
            dict(Counter(one.ending for one in seen)),
            sum(one.restarts > 0 for one in seen),
            sum(one.ending == "whole" and one.tokens != tokens for one in seen),
            max((one.e2e_ms or 0.0) for one in seen) / 1000,
        )


@dataclass(frozen=True, slots=True)
class FaultReport:
    """All cases with one rig. Durations are None where it did not happen within its bound."""

    target: str
    leave_stream_s: float | None
    """From the client's leaving a stream until no engine worked on it."""
    leave_whole_s: float | None
    """The same for an answer that is not streamed."""
    cancel_s: float | None
    """From asking for the end; NaN where there is no way to ask."""
    killed: InFlight
    """Requests on two engines, of which one was killed."""
    after_kill_failed: int
    """Of the next hundred."""
    after_kill_ttft_p95_ms: float
    back_s: float | None
    """From the killed engine's start until it got a request."""
    down: Seen
    """A request when no engine was left."""
    down_names_worker: bool
    """Whether what the client was told had a worker's address in it."""
    down_then_back: Seen
    """A request when no engine was left, and one came back a second later."""
    term: InFlight
    """Requests that ran when what stands in front got SIGTERM."""
    term_exit_s: float | None


async def break_things(target: str, enter: EnterRig, seed: int) -> FaultReport:
    """Every case; SIGTERM last, on a rig of its own."""
    engines = Engines(ENGINES, 1.0, seed)
    with tempfile.TemporaryDirectory(prefix="rivals-") as folder:
        async with enter(engines, Path(folder)) as rig:
            leave_stream_s = await _leave(rig, stream=True)
            leave_whole_s = await _leave(rig, stream=False)
            cancel_s = await _cancel(rig)
            killed, after = await _kill(rig)
            back_s = await _come_back(rig)
            down, down_then_back = await _all_down(rig)
            names_worker = rig.names_a_worker(down.detail)
        async with enter(engines, Path(folder)) as rig:
            term, term_exit_s = await _terminate(rig)
    ttft = [one.ttft_ms for one in after if one.ttft_ms is not None]
    return FaultReport(
        target=target,
        leave_stream_s=leave_stream_s,
        leave_whole_s=leave_whole_s,
        cancel_s=cancel_s,
        killed=killed,
        after_kill_failed=sum(one.ending != "whole" for one in after),
        after_kill_ttft_p95_ms=float(np.percentile(ttft, 95)) if ttft else float("nan"),
        back_s=back_s,
        down=down,
        down_names_worker=names_worker,
        down_then_back=down_then_back,
        term=term,
        term_exit_s=term_exit_s,
    )


async def _leave(rig: Rig, *, stream: bool) -> float | None:
    await rig.leave(_one(f"leave-{stream}", LONG_TOKENS), LEAVE_AFTER_S, stream=stream)
    return await _freed(rig, time.monotonic())


async def _cancel(rig: Rig) -> float | None:
    asked_at = await rig.cancel(_one("cancel", LONG_TOKENS), LEAVE_AFTER_S)
    return float("nan") if asked_at is None else await _freed(rig, asked_at)


async def _freed(rig: Rig, since: float) -> float | None:
    """Seconds until the engines are empty; None after FREED_WITHIN_S. They are, on return."""
    while await rig.in_engines():
        if time.monotonic() - since > EMPTY_WITHIN_S:
            raise RuntimeError(f"an engine was still busy after {EMPTY_WITHIN_S:g} s")
        await asyncio.sleep(POLL_S)
    took_s = time.monotonic() - since
    return took_s if took_s <= FREED_WITHIN_S else None


async def _kill(rig: Rig) -> tuple[InFlight, list[Seen]]:
    """Kill the first engine under running requests, and send more at once."""
    running = _start(rig, "running", IN_FLIGHT, IN_FLIGHT_TOKENS)
    await asyncio.sleep(KILL_AFTER_S)
    rig.kill(0)
    short = Lengths(median=4, sigma=0.0, most=4)
    seconds = AFTER_KILL / AFTER_KILL_RATE
    sent = arrivals("after", AFTER_KILL_RATE, seconds, 1, prompts=SHORT_PROMPTS, answers=short)
    after = await drive(lambda a, due_at: rig.send(a, due_at, within_s=PATIENCE_S), sent)
    return InFlight.of(list(await running), IN_FLIGHT_TOKENS), after


async def _come_back(rig: Rig) -> float | None:
    """Start the killed engine; requests two at a time until it gets one."""
    started = time.monotonic()
    await rig.restart(0)
    number = 0
    while time.monotonic() - started < BACK_WITHIN_S:
        seen = await _start(rig, f"back-{number}", 2, 4)
        if any(one.instance == rig.names[0] for one in seen):
            return time.monotonic() - started
        number += 1
        await asyncio.sleep(BACK_EVERY_S)
    return None


async def _all_down(rig: Rig) -> tuple[Seen, Seen]:
    for number in range(ENGINES):
        rig.kill(number)
    down = await rig.send(_one("down", 4), time.monotonic(), within_s=DOWN_WITHIN_S)
    waiting = asyncio.ensure_future(
        rig.send(_one("waiting", 4), time.monotonic(), within_s=PATIENCE_S)
    )
    await asyncio.sleep(RETURN_AFTER_S)
    await rig.restart(1)
    return down, await waiting


async def _terminate(rig: Rig) -> tuple[InFlight, float | None]:
    running = _start(rig, "term", TERM_IN_FLIGHT, TERM_TOKENS)
    await asyncio.sleep(TERM_AFTER_S)
    exit_s = await rig.end_dispatching()
    return InFlight.of(list(await running), TERM_TOKENS), exit_s


def _start(rig: Rig, name: str, count: int, tokens: int) -> "asyncio.Future[list[Seen]]":
    """That many requests at once."""
    due_at = time.monotonic()
    requests = (_one(f"{name}-{number}", tokens) for number in range(count))
    return asyncio.gather(*(rig.send(one, due_at, within_s=PATIENCE_S) for one in requests))


def _one(name: str, tokens: int) -> Arrival:
    return arrival(name, 0.0, 20, tokens, text_seed=name)
