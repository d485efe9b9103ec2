"""`python -m bench.soak [--streams N] [--minutes M]`: many slow streams, and who grows."""

import argparse
import asyncio
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.cpu import machine
from bench.soak.memory import Growth, rss_mib
from bench.soak.streams import Streams
from pipeline.client import Client
from pipeline.process import configure_logs
from pipeline.report import write_json
from pipeline.stack import LocalStack
from pipeline.stack_settings import StackSettings

OUT = Path("bench-results") / "soak.json"
INSTANCES = 4
ENGINE = (
    *("--engine-arg", "profile=h100-llama-2-7b"),
    *("--engine-arg", "max_num_seqs=512"),
    *("--engine-arg", "queue_max=1024"),
)
TIME_SCALE = 50.0
"""A token a second and stream: what is measured is how many streams, not how fast an engine."""
SAMPLE_S = 2.0
SLOW_CONSUMER = "Slow Consumer"
"""How the server's log begins to tell of a reader that it cut off."""


@dataclass(slots=True)
class Soak:
    """What was seen; memory from the end of the warm-up to the end of the load."""

    streams: int
    minutes: float
    open_median: float = 0.0
    open_max: int = 0
    done: int = 0
    token_events_per_s: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)
    slow_consumers: int = 0
    memory: dict[str, Growth] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        flat = all(growth.flat for growth in self.memory.values())
        return flat and self.done > 0 and not self.errors and not self.slow_consumers


async def run(
    streams: int, length_s: float, warm_up_s: float, seed: int, time_scale: float = TIME_SCALE
) -> Soak:
    """`warm_up_s` until memory is looked at, then `length_s` of load, then what is left ends."""
    settings = StackSettings(
        instances=INSTANCES,
        seed=seed,
        worker_args=(*ENGINE, "--engine-arg", f"time_scale={time_scale:g}"),
        worker_grace_s=1.0,
    )
    seen = Soak(streams, length_s / 60)
    async with LocalStack(settings) as stack:
        async with await Client.connect(stack.bus_settings, client="soak") as client:
            load = Streams(client, streams, seed)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(load.run(warm_up_s + length_s, warm_up_s / 2))
                await asyncio.sleep(warm_up_s)
                await _watch(stack, load, length_s, seen)
        log = (stack.logs / "nats.log").read_text(errors="replace")
    seen.slow_consumers = log.count(SLOW_CONSUMER)
    seen.done, seen.errors = load.done, dict(load.errors)
    return seen


async def _watch(stack: LocalStack, load: Streams, length_s: float, seen: Soak) -> None:
    """Sample memory and open streams. Raises FileNotFoundError when a component died."""
    loop = asyncio.get_running_loop()
    started, tokens_before = loop.time(), load.tokens
    at_s: list[float] = []
    memory: dict[str, list[float]] = defaultdict(list)
    opened: list[int] = []
    while (now_s := loop.time() - started) < length_s:
        at_s.append(now_s)
        opened.append(load.open)
        for name, child in stack.processes.items():
            memory[name].append(rss_mib(child.pid))
        await asyncio.sleep(SAMPLE_S)
    seen.open_median, seen.open_max = median(opened), max(opened)
    seen.token_events_per_s = (load.tokens - tokens_before) / (loop.time() - started)
    seen.memory = {name: Growth.of(at_s, mib) for name, mib in memory.items()}


def table(seen: Soak) -> Table:
    """For people."""
    shown = Table(title=f"soak, {seen.streams} streams, {seen.minutes:g} minutes")
    for column in ("", "MiB", "MiB a minute", ""):
        shown.add_column(column, justify="right")
    for name, growth in seen.memory.items():
        verdict = "flat" if growth.flat else "[red]grows"
        shown.add_row(name, f"{growth.mean_mib:.0f}", f"{growth.slope_mib_min:+.1f}", verdict)
    shown.caption = (
        f"open: median {seen.open_median:.0f}, most {seen.open_max}; {seen.done} done; "
        f"{seen.token_events_per_s:.0f} token events/s; errors {seen.errors or 'none'}; "
        f"slow consumers {seen.slow_consumers}"
    )
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--streams", type=int, default=1500, help="at the same time")
    parser.add_argument("--minutes", type=float, default=5.0, help="after the warm-up")
    parser.add_argument("--warm-up-s", type=float, default=60.0, help="before memory is looked at")
    parser.add_argument("--seed", type=int, default=1, help="of answers' lengths and the engines")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    configure_logs("error")
    seen = asyncio.run(run(given.streams, given.minutes * 60, given.warm_up_s, given.seed))
    Console().print(table(seen))
    report = {**asdict(seen), "seed": given.seed, "good": seen.good, "machine": machine()}
    write_json(given.out, report)
    return 0 if seen.good else 1


if __name__ == "__main__":
    sys.exit(main())
