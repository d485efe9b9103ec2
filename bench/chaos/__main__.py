"""`python -m bench.chaos [--seed N] [--minutes M]`: break a stack, and count what became of it."""

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.chaos.audit import Audit, Seen, audit
from bench.chaos.faults import Fault, schedule
from bench.chaos.load import Load
from bench.chaos.stack import BreakableStack, component_names
from bench.chaos.watch import Watcher
from pipeline.bus import Bus
from pipeline.client import Client
from pipeline.conclusion import find_result
from pipeline.errors import BusError
from pipeline.messages import Result
from pipeline.process import configure_logs
from pipeline.stack_settings import StackSettings

OUT = Path("bench-results/chaos.json")
CLIENT = "chaos"
RATE = 8.0
READ_EVERY_S = 20.0
SETTLES_S = 60.0
"""After the load: what was accepted has to have its result by then."""
ENGINE = ("--engine-arg", "time_scale=0.5")
"""Answers of a second or so: long enough to be broken, short enough for many of them."""


async def run(seed: int, length_s: float, rate: float, console: Console) -> Audit:
    """One stack, one schedule of faults, one audit."""
    settings = StackSettings(
        instances=4, taggers=2, dispatchers=2, seed=seed, worker_args=ENGINE, worker_grace_s=2.0
    )
    faults = schedule([*component_names(settings), "nats"], length_s, seed)
    async with BreakableStack(settings) as stack:
        watch_bus = await Bus.connect(stack.bus_settings, name="watcher")
        watcher = Watcher()
        await watcher.listen(watch_bus, CLIENT)
        async with await Client.connect(stack.bus_settings, client=CLIENT) as client:
            load = Load(client, rate, seed)
            with Progress(console=console, transient=True) as progress:
                task = progress.add_task("breaking", total=len(faults))
                suffered: list[Fault] = []
                results: dict[str, Result] = {}
                async with asyncio.TaskGroup() as tasks:
                    loading = tasks.create_task(load.run(length_s + 5.0))
                    tasks.create_task(_keep_reading(watch_bus, load.seen, results, loading))
                    async for fault in _break(stack, faults):
                        suffered.append(fault)
                        progress.update(task, advance=1, description=f"{fault.component}")
        await _settle(watch_bus, load.seen, results)
        stuck = await _stuck(watch_bus)
        await watch_bus.close()
    return audit(
        load.seen,
        results,
        watcher.finals,
        suffered,
        stuck=stuck,
        resumed=watcher.resumed,
        restarted=watcher.restarted,
    )


async def _break(stack: BreakableStack, faults: Sequence[Fault]) -> AsyncIterator[Fault]:
    """Each fault at its time, or when the one before is over; as it really began."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    for fault in faults:
        await asyncio.sleep(max(0.0, started + fault.at_s - loop.time()))
        began = replace(fault, at_s=loop.time() - started)
        await stack.suffer(fault)
        yield began


async def _keep_reading(
    bus: Bus, seen: Sequence[Seen], results: dict[str, Result], loading: asyncio.Task[None]
) -> None:
    """Results as they come, until the load is over: RESULTS forgets them after 15 minutes."""
    while not loading.done():
        await asyncio.wait({loading}, timeout=READ_EVERY_S)
        ended = [one for one in seen if one.ended_at_s is not None]
        await _read(bus, ended, results)


async def _settle(bus: Bus, seen: Sequence[Seen], results: dict[str, Result]) -> None:
    """The rest, once everything accepted is there or the time for it is over."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + SETTLES_S
    while True:
        await _read(bus, seen, results)
        missing = [one for one in seen if one.accepted and one.request not in results]
        if not missing or loop.time() > give_up_at:
            return
        await asyncio.sleep(1.0)


async def _read(bus: Bus, seen: Sequence[Seen], results: dict[str, Result]) -> None:
    for one in seen:
        if one.request not in results:
            with contextlib.suppress(BusError):
                found = await find_result(bus, CLIENT, one.request)
                if found is not None:
                    results[one.request] = found


async def _stuck(bus: Bus) -> int:
    """Messages that still lie in a work queue: nobody will hear of them."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + SETTLES_S
    while True:
        subjects = bus.subjects
        left = 0
        for stream in (subjects.requests_stream, subjects.tagged_stream, subjects.inbox_stream):
            left += (await bus.jetstream.stream_info(stream))["state"]["messages"]
        if not left or loop.time() > give_up_at:
            return left
        await asyncio.sleep(0.5)


def table(figures: Audit, seed: int) -> Table:
    """For people."""
    shown = Table(title=f"chaos, seed {seed}", show_header=False)
    for name, value in asdict(figures).items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {_short(one)}" for key, one in value.items()) or "-"
        shown.add_row(name, f"{value:.1f}" if isinstance(value, float) else str(value))
    shown.add_row("verdict", "[green]nothing lost" if figures.good else "[red]broken promises")
    return shown


def _short(value: object) -> str:
    if isinstance(value, dict):
        return f"{value['median']:.1f}/{value['worst']:.1f} s"
    return str(value)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the faults and the load")
    parser.add_argument("--minutes", type=float, default=10.0, help="of faults")
    parser.add_argument("--rate", type=float, default=RATE, help="requests a second")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    configure_logs("error")
    console = Console()
    figures = asyncio.run(run(given.seed, given.minutes * 60, given.rate, console))
    console.print(table(figures, given.seed))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    report = {**asdict(figures), "seed": given.seed, "minutes": given.minutes, "good": figures.good}
    given.out.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if figures.good else 1


if __name__ == "__main__":
    sys.exit(main())
