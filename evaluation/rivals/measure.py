"""One target in one case: its latency when nothing else is going on, then under load."""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evaluation.rivals.drive import drive
from evaluation.rivals.engines import Engines
from evaluation.rivals.machine import Meter, Used
from evaluation.rivals.seen import Seen, Send
from evaluation.rivals.targets import Enter, Target
from evaluation.rivals.workload import (
    SHORT_ANSWERS,
    SHORT_PROMPTS,
    Arrival,
    alone_ms,
    arrivals,
)

IDLE_SEED = 11
SETTLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How one comparison is made; every target gets the same."""

    engines: Engines
    load: float
    """Arrivals as a share of what all engines together can keep up with."""
    seconds: float
    idle_requests: int
    """Short requests that are sent one after another beforehand."""

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.load * self.engines.capacity()


@dataclass(frozen=True, slots=True)
class Idle:
    """Short requests one after another on idle engines, in ms."""

    ttft_p50: float
    ttft_p99: float
    e2e_p50: float

    @classmethod
    def of(cls, seen: Sequence[Seen]) -> "Idle":
        e2e = [one.e2e_ms for one in seen if one.ending == "whole" and one.e2e_ms is not None]
        return cls(_percentile(_ttft(seen), 50), _percentile(_ttft(seen), 99), _percentile(e2e, 50))


@dataclass(frozen=True, slots=True)
class Measured:
    """One target's figures; latencies are of whole answers only, in ms."""

    requests: int
    failed: Mapping[str, int]
    """By how they ended."""
    idle: Idle
    ttft_p50: float
    ttft_p99: float
    e2e_mean: float
    e2e_p99: float
    slowdown_mean: float
    slowdown_p99: float
    """E2E / E2E of the same request alone on an idle engine of ordinary speed."""
    shares: Mapping[str, float]
    """Of the requests, by engine."""
    own_share: float
    """Of the machine's time while requests were sent: dispatchers, engines, clients."""
    idle_share: float
    """Of the machine's time while requests were sent, used by nobody."""
    dispatch_cpu_ms: float
    """Per request: the router's processes, or ours but the workers."""
    engine_cpu_ms: float
    """Per request: servers or workers, the simulated engines in them."""
    send_lag_p99: float


async def measure(enter: Enter, plan: Plan) -> Measured:
    """Start the target, measure it, end it."""
    with tempfile.TemporaryDirectory(prefix="rivals-") as folder:
        async with enter(plan.engines, Path(folder)) as target:
            idle = Idle.of(await one_after_another(target.send, plan.idle_requests))
            await asyncio.sleep(SETTLE_S)
            return await _under_load(target, plan, idle)


async def measure_idle(enter: Enter, plan: Plan) -> Idle:
    """Only the part without load; for a target that could not carry the other."""
    with tempfile.TemporaryDirectory(prefix="rivals-") as folder:
        async with enter(plan.engines, Path(folder)) as target:
            return Idle.of(await one_after_another(target.send, plan.idle_requests))


async def one_after_another(send: Send, count: int) -> list[Seen]:
    """Short requests on idle engines: what is in front adds its latency, and nobody waits."""
    sent = arrivals("idle", 1.0, count, IDLE_SEED, prompts=SHORT_PROMPTS, answers=SHORT_ANSWERS)
    return [await send(arrival, time.monotonic()) for arrival in sent]


async def _under_load(target: Target, plan: Plan, idle: Idle) -> Measured:
    sent = arrivals("load", plan.rate, plan.seconds, plan.engines.seed)
    meter = Meter(target.dispatchers, target.engines)
    while_sending: list[Used] = []
    timer = asyncio.get_running_loop().call_later(
        sent[-1].at_s, lambda: while_sending.append(meter.so_far())
    )
    seen = await drive(target.send, sent)
    timer.cancel()
    return summarise(plan, sent, seen, idle, [*while_sending, meter.so_far()])


def summarise(
    plan: Plan,
    sent: Sequence[Arrival],
    seen: Sequence[Seen],
    idle: Idle,
    used: Sequence[Used],
) -> Measured:
    """Figures of one run; `sent` and `seen` are in the same order, `used` is first what was used
    while requests were sent, last what was used in all."""
    pairs = [
        (one.e2e_ms, alone_ms(arrival, plan.engines.ordinary))
        for arrival, one in zip(sent, seen, strict=True)
        if one.ending == "whole" and one.e2e_ms is not None
    ]
    e2e = [took for took, _ in pairs]
    slowdown = [took / alone for took, alone in pairs]
    ttft = _ttft(seen)
    answered = Counter(one.instance for one in seen if one.instance is not None)
    return Measured(
        requests=len(seen),
        failed=dict(Counter(one.ending for one in seen if one.ending != "whole")),
        idle=idle,
        ttft_p50=_percentile(ttft, 50),
        ttft_p99=_percentile(ttft, 99),
        e2e_mean=_mean(e2e),
        e2e_p99=_percentile(e2e, 99),
        slowdown_mean=_mean(slowdown),
        slowdown_p99=_percentile(slowdown, 99),
        shares={engine: count / len(seen) for engine, count in sorted(answered.items())},
        own_share=used[0].own_share,
        idle_share=used[0].idle_share,
        dispatch_cpu_ms=used[-1].dispatch_cpu_ms / len(seen),
        engine_cpu_ms=used[-1].engine_cpu_ms / len(seen),
        send_lag_p99=_percentile([one.send_lag_ms for one in seen], 99),
    )


def _ttft(seen: Sequence[Seen]) -> list[float]:
    return [one.ttft_ms for one in seen if one.ending == "whole" and one.ttft_ms is not None]


def _percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if values else float("nan")


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
