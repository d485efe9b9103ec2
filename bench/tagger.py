"""How fast the tagger's length model is, as it is served.

    make bench-tagger

The estimator of the tagger with the shipped model on one thread, the process on one core, nothing
remembered and everything waited for, on prompts with ShareGPT's mix of lengths:

* closed loop: the next prompt as soon as one is done; prompts a second;
* Poisson arrivals of 20, 50 and 100 a second: from a prompt's arrival to its estimate, in ms.

`--data` names prompts of one's own (JSONL; its order is shuffled by the seed); without it the
packaged sample is stretched and cut to the quantiles of ShareGPT's first turns. Prints a table and
writes bench-results/tagger.json.
"""

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
import uvloop
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.cpu import machine
from pipeline.estimates import Question, RunningMedian
from pipeline.messages import Request
from pipeline.prompts import read_prompts
from pipeline.report import write_json
from tagger.estimator import ModelEstimator
from tagger.live_error import LiveError
from tagger.model import LengthModel
from tagger.runner import ModelRunner
from tagger.token_counts import TokenCounts

RATES = (20, 50, 100)
CLOSED_LOOP = 1_000
PATIENCE_MS = 60_000.0
"""Nobody gives up here: a late prompt is to be seen."""
CHARS_PER_TOKEN = 4.4
SHAREGPT_TOKENS = {0.0: 3, 0.05: 5, 0.25: 12, 0.5: 25, 0.75: 78, 0.95: 606, 0.99: 2153, 1.0: 8000}
"""Of true first turns, by quantile."""
OUT = Path("bench-results") / "tagger.json"


def main(
    seed: int = 1,
    seconds: Annotated[float, typer.Option(help="Of each rate.")] = 20.0,
    data: Path | None = None,
    model: Annotated[Path | None, typer.Option(help="Default: the packaged one.")] = None,
) -> None:
    """Measure and print; see the module's text."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    prompts = mix(seed, data)
    loaded = LengthModel.load(model)
    prompts_per_s, latency_ms = uvloop.run(_measure(loaded, prompts, seconds, seed))
    console = Console()
    table = Table("arrivals", "p50, ms", "p99, ms")
    for rate, figures in latency_ms.items():
        table.add_row(f"{rate}/s", f"{figures['p50']:.1f}", f"{figures['p99']:.1f}")
    console.print(table)
    console.print(
        f"{prompts_per_s:.0f} prompts/s on one core; {loaded.name}; {machine()}; {OUT}",
        highlight=False,
    )
    write_json(
        OUT,
        {
            "prompts_per_s": round(prompts_per_s, 1),
            "latency_ms": latency_ms,
            "model": loaded.name,
            "seconds": seconds,
            "machine": machine(),
        },
    )


def mix(seed: int, data: Path | None) -> list[str]:
    """Prompts in seeded order."""
    rng = random.Random(seed)
    prompts = [row.prompt for row in read_prompts(data)]
    rng.shuffle(prompts)
    if data is not None:
        return prompts
    quantiles, tokens = zip(*SHAREGPT_TOKENS.items(), strict=True)
    sizes = np.exp(np.interp([rng.random() for _ in range(CLOSED_LOOP)], quantiles, np.log(tokens)))
    text = " ".join(prompts)
    found = []
    for size in sizes:
        start, chars = rng.randrange(len(text)), max(1, round(size * CHARS_PER_TOKEN))
        found.append((text[start:] + text * (1 + chars // len(text)))[:chars])
    return found


async def _measure(
    model: LengthModel, prompts: list[str], seconds: float, seed: int
) -> tuple[float, dict[str, dict[str, float]]]:
    """Prompts a second in a closed loop; p50 and p99 in ms by rate."""
    estimator = ModelEstimator(
        model.name,
        ModelRunner(model),
        TokenCounts({}, model.count_tokens),
        RunningMedian(),
        LiveError(model.name),
        wait_ms=PATIENCE_MS,
        remembered_max=0,
    )
    questions = [Question(Request(id="b", prompt=p), p, "default") for p in prompts]
    for question in questions[:50]:
        await estimator.estimate(question)  # the first calls are slow
    started = time.perf_counter()
    for number in track(range(CLOSED_LOOP), description="closed loop"):
        await estimator.estimate(questions[number % len(questions)])
    prompts_per_s = CLOSED_LOOP / (time.perf_counter() - started)
    latency_ms = {}
    for rate in RATES:
        took = await _at(rate, estimator, questions, seconds, seed)
        p50, p99 = np.percentile(took, (50, 99))
        latency_ms[str(rate)] = {"p50": round(float(p50), 2), "p99": round(float(p99), 2)}
    estimator.close()
    return prompts_per_s, latency_ms


async def _at(
    rate: float, estimator: ModelEstimator, questions: list[Question], seconds: float, seed: int
) -> list[float]:
    """ms from arrival to estimate, of Poisson arrivals for so long."""
    rng = random.Random(f"{seed}:{rate}")
    count = round(rate * seconds)
    loop = asyncio.get_running_loop()
    took: list[float] = []

    async def ask(question: Question, at: float) -> None:
        await estimator.estimate(question)
        took.append((loop.time() - at) * 1000)

    at = loop.time()
    async with asyncio.TaskGroup() as tasks:
        for _ in track(range(count), description=f"{rate}/s"):
            at += rng.expovariate(rate)
            await asyncio.sleep(max(0.0, at - loop.time()))
            tasks.create_task(ask(rng.choice(questions), at))
    return took


if __name__ == "__main__":
    typer.run(main)
