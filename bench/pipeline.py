"""The pipeline's own added latency: client publish to engine accept, less the length model's time.

    make bench

Runs a local stack of four instances with the simulated engine (twenty times as fast as an A30, so
that engines are never the bottleneck) and sends short requests at 50 and 200 a second; then, on
the same NATS server, the same rates through bench/relay.py, which does the same hops and decides
nothing. Prints p50 and p99 and CPU time per request, and writes bench-results/pipeline.json.
Compare within one run: these figures are about the code only as far as the machine is quiet.
"""

import asyncio
import contextlib
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
import uvloop
from rich.console import Console
from rich.table import Table

from bench.cpu import cpu_ms, machine
from bench.relay import PREFIX, ROLES
from pipeline.bus import Bus, BusSettings, Message
from pipeline.bus.topology import ensure_topology
from pipeline.child import Child
from pipeline.client import Client
from pipeline.load import arrival_offsets_s, drive
from pipeline.messages import Request, wall_ms
from pipeline.process import configure_logs
from pipeline.prompts import choose, read_prompts
from pipeline.report import STAGES, Spread, Summary, summarise, write_json
from pipeline.stack import LocalStack, StackSettings

RATES = (50, 200)
SECONDS = 20
WARM_UP = 50
ANSWER_TOKENS = 4
INSTANCES = 4
FAST_ENGINE = ("--engine-arg", "time_scale=0.05", "--engine-arg", "overhead_ms=0")
OUT = Path("bench-results") / "pipeline.json"


@dataclass(frozen=True, slots=True)
class Run:
    """One rate through the real pipeline."""

    summary: Summary
    cpu_ms: Mapping[str, float]
    """Per request, by role; the instances' processes together."""


def main(seconds: int = SECONDS, seed: int = 1) -> None:
    """Measure and print; see the module's text."""
    configure_logs("error")
    runs, floor = uvloop.run(measure(seconds, seed))
    console = Console()
    console.print(_latency_table(runs, floor), _cpu_table(runs))
    report = as_json(runs, floor)
    write_json(OUT, report)
    console.print(f"{report['machine']}; {seconds} s a rate; figures: {OUT}", highlight=False)


async def measure(seconds: int, seed: int) -> tuple[dict[int, Run], dict[int, Spread]]:
    settings = StackSettings(
        instances=INSTANCES, seed=seed, worker_args=FAST_ENGINE, worker_grace_s=1
    )
    async with LocalStack(settings) as stack:
        runs = {rate: await pipeline_at(stack, rate, seconds, seed) for rate in RATES}
        async with floor_processes(stack.url, stack.logs) as bus:
            floor = {rate: await floor_at(bus, rate, seconds, seed) for rate in RATES}
    return runs, floor


async def pipeline_at(stack: LocalStack, rate: int, seconds: int, seed: int) -> Run:
    """Short requests through the real stack."""
    async with await Client.connect(stack.bus_settings, client="bench") as client:
        warm = requests(f"warm{rate}", WARM_UP, seed)
        await drive(client, warm, arrival_offsets_s(len(warm), rate, seed))
        before = {name: cpu_ms(child.pid) for name, child in stack.processes.items()}
        made = requests(f"run{rate}", rate * seconds, seed + 1)
        outcomes = await drive(client, made, arrival_offsets_s(len(made), rate, seed + 1))
        used: dict[str, float] = defaultdict(float)
        for name, child in stack.processes.items():
            role = name.partition("-")[0]
            used[role] += (cpu_ms(child.pid) - before[name]) / len(made)
    return Run(summarise(outcomes, seconds), dict(used))


def requests(run: str, count: int, seed: int) -> list[Request]:
    """The sample's prompts, with answers too short to load the engines."""
    rows = choose(read_prompts(None), count, seed)
    return [
        Request(id=f"{run}-{n}", prompt=row.prompt, max_tokens=ANSWER_TOKENS, ignore_eos=True)
        for n, row in enumerate(rows)
    ]


@contextlib.asynccontextmanager
async def floor_processes(url: str, logs: Path) -> AsyncIterator[Bus]:
    """The relay's processes, ready; nothing of them is left afterwards."""
    bus = await Bus.connect(BusSettings(url=url, prefix=PREFIX), name="floor")
    await ensure_topology(bus)
    children = [
        Child([sys.executable, "-m", "bench.relay", role, url], logs / f"floor-{role}.log")
        for role in ROLES
    ]
    try:
        await asyncio.sleep(3)
        yield bus
    finally:
        for child in children:
            child.kill()
        await bus.close()


async def floor_at(bus: Bus, rate: int, seconds: int, seed: int) -> Spread:
    """The same arrivals through the relay: publish to sink, in ms."""
    took: list[float] = []

    def arrived(message: Message) -> None:
        sent_at_ms, taken_at_ms = (float(part) for part in message.data.split())
        took.append(taken_at_ms - sent_at_ms)

    subscription = await bus.subscribe(bus.subjects.output("floor", "all"), arrived)
    offsets = arrival_offsets_s(rate * seconds, rate, seed + 1)
    loop = asyncio.get_running_loop()
    started = loop.time() + 0.2
    sending = []
    for number, offset in enumerate(offsets):
        await asyncio.sleep(max(0.0, started + offset - loop.time()))
        sending.append(asyncio.create_task(_send(bus, f"{rate}-{number}")))
    await asyncio.gather(*sending)
    await asyncio.sleep(1)
    await subscription.close()
    if len(took) < len(offsets):
        raise RuntimeError(f"the floor lost {len(offsets) - len(took)} messages")
    return Spread.of(took[WARM_UP:])


async def _send(bus: Bus, name: str) -> None:
    await bus.jetstream.store(
        bus.subjects.request("floor", "default"), b"%r" % wall_ms(), message_id=name
    )


def as_json(runs: Mapping[int, Run], floor: Mapping[int, Spread]) -> dict[str, object]:
    highest = runs[max(runs)]
    return {
        "machine": machine(),
        "added_latency_ms": {
            str(rate): run.summary.added_ms.as_json() for rate, run in runs.items()
        },
        "floor_ms": {str(rate): spread.as_json() for rate, spread in floor.items()},
        "cpu_ms_per_request": {role: round(ms, 3) for role, ms in highest.cpu_ms.items()},
        "cpu_ms_per_request_by_rate": {
            str(rate): {role: round(ms, 3) for role, ms in run.cpu_ms.items()}
            for rate, run in runs.items()
        },
        "stages_ms": {
            str(rate): {name: s.as_json() for name, s in run.summary.stages_ms.items()}
            for rate, run in runs.items()
        },
        "estimate_ms": {str(rate): run.summary.estimate_ms.as_json() for rate, run in runs.items()},
        "failed": {str(rate): sum(run.summary.failed.values()) for rate, run in runs.items()},
        "fallbacks": {str(rate): run.summary.fallbacks for rate, run in runs.items()},
    }


def _latency_table(runs: Mapping[int, Run], floor: Mapping[int, Spread]) -> Table:
    table = Table(title="Added latency, ms: p50 / p99")
    table.add_column("")
    for rate in runs:
        table.add_column(f"{rate}/s", justify="right")
    for name in STAGES:
        table.add_row(name, *(_pair(run.summary.stages_ms[name]) for run in runs.values()))
    table.add_section()
    table.add_row("publish to engine accept", *(_pair(r.summary.added_ms) for r in runs.values()))
    table.add_row("the bus's own floor", *(_pair(floor[rate]) for rate in runs))
    table.add_row(
        "length model (not counted)", *(_pair(r.summary.estimate_ms) for r in runs.values())
    )
    table.add_row("failed", *(str(sum(r.summary.failed.values())) for r in runs.values()))
    return table


def _cpu_table(runs: Mapping[int, Run]) -> Table:
    table = Table(title="CPU per request, ms")
    table.add_column("")
    for rate in runs:
        table.add_column(f"{rate}/s", justify="right")
    roles: Sequence[str] = list(next(iter(runs.values())).cpu_ms)
    for role in roles:
        table.add_row(role, *(f"{run.cpu_ms[role]:.2f}" for run in runs.values()))
    return table


def _pair(spread: Spread) -> str:
    return f"{spread.p50:.2f} / {spread.p99:.2f}"


if __name__ == "__main__":
    typer.run(main)
