"""`astrolabe evaluate engine`: both parts on a real vLLM, with tables and a report."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import track
from rich.table import Table

from engines.folder import TINY_LLAMA, VLLM, VLLM_ENVIRONMENT, python_of
from evaluation.engine import ours, theirs, trace
from evaluation.engine.cases import BLOCK_SIZE, groups
from evaluation.engine.compare import Comparison, compare
from evaluation.engine.judge import Verdict, judge
from evaluation.engine.live import Placer
from pipeline.bus import Bus
from pipeline.errors import AstrolabeError
from pipeline.stack import LocalStack
from pipeline.stack_settings import StackSettings

INSTANCES = 2
RATES = (2.0, 4.0, 6.0)
"""Requests a second for both: about a third, two thirds and all of what two cores carry."""
REQUESTS, QUICK_REQUESTS = 200, 60
WARM_UP_REQUESTS = 80
"""From which the predictors learn how long a step takes here."""
MODES = {"exact": "exact=true", "statistics": "exact=false"}
READY_S = 240.0
ENGINE_ARGS = (
    f"--dtype bfloat16 --enforce-eager --block-size {BLOCK_SIZE} --num-gpu-blocks-override 61 "
    "--kv-cache-memory-bytes 67108864 --max-model-len 512 --max-num-seqs 12 "
    "--max-num-batched-tokens 128 --no-enable-prefix-caching"
)
"""So small that queues, chunks and preemptions really happen."""


@dataclass(frozen=True, slots=True)
class Live:
    """One load in one mode."""

    mode: str
    rate: float
    verdict: Verdict
    unanswered_probes: int


def conduct(out: Path, *, seeds: int, quick: bool, console: Console) -> None:
    """Both parts; writes `engine/summary.json` and `engine/report.md` under `out`.

    Raises UsageError where no vLLM is set up, AstrolabeError where it fails.
    """
    theirs.check_installed()
    compared = step_by_step(seeds, console)
    tables = [_steps_table(compared)]
    console.print(tables[0])
    lived = asyncio.run(_live(QUICK_REQUESTS if quick else REQUESTS, console))
    tables.append(_live_table(lived))
    console.print(tables[1])
    folder = out / "engine"
    folder.mkdir(parents=True, exist_ok=True)
    summary = {
        "steps": [asdict(one) for one in compared],
        "live": [asdict(one) for one in lived],
    }
    (folder / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(summary)))
    console.print(f"figures in {folder}")


def step_by_step(seeds: int, console: Console) -> list[Comparison]:
    """Part one: the two schedulers."""
    compared = []
    for group in track(groups(seeds), "step by step", console=console, transient=True):
        steps = theirs.run(group)
        for case in group.cases:
            prompts = {arrival.key: len(arrival.prompt) for arrival in case.arrivals}
            ran = ours.run(case, group.limits)
            compared.append(compare(case.name, prompts, steps[case.name], ran))
    return compared


async def _live(requests: int, console: Console) -> list[Live]:
    """Part two: predictions and outcomes."""
    os.environ.update(VLLM_ENVIRONMENT)  # for the workers
    lived = []
    for mode, setting in MODES.items():
        args = ("model=" + str(TINY_LLAMA), "args=" + ENGINE_ARGS, setting)
        settings = StackSettings(
            instances=INSTANCES,
            taggers=0,
            engine="vllm",
            engine_python=python_of(VLLM),
            worker_args=tuple(part for arg in args for part in ("--engine-arg", arg)),
            worker_grace_s=1.0,
        )
        stack = LocalStack(settings)
        with console.status(f"starting two vLLM ({mode})"):
            await stack.start(READY_S)
        try:
            lived += await _loads(stack, mode, requests, console)
        finally:
            await stack.stop()
    return lived


async def _loads(stack: LocalStack, mode: str, requests: int, console: Console) -> list[Live]:
    bus = await Bus.connect(stack.bus_settings, name="evaluation")
    lived = []
    try:
        placer = Placer(bus, seed=0)
        await placer.listen(INSTANCES)
        await placer.run("warm-up", trace.make(WARM_UP_REQUESTS, RATES[0], seed=0))
        for number, rate in enumerate(RATES):
            with console.status(f"{mode}: {requests} requests at {rate:g} a second"):
                happened = await placer.run(
                    f"{mode}-{number}", trace.make(requests, rate, seed=number + 1)
                )
            verdict = judge(happened.runs, happened.pairs)
            lived.append(Live(mode, rate, verdict, happened.unanswered_probes))
    except* AstrolabeError as errors:
        raise errors.exceptions[0] from errors
    finally:
        await bus.close()
    return lived


def _steps_table(compared: Sequence[Comparison]) -> Table:
    table = Table(title="vLLM's scheduler and the predictor's, step by step")
    for name in ("case", "steps", "equal", "chunked", "preemptions", "first difference"):
        table.add_column(name, justify="left" if name in ("case", "first difference") else "right")
    for one in compared:
        table.add_row(
            one.case,
            str(one.steps),
            str(one.equal),
            str(one.chunked),
            str(one.preemptions),
            one.first_difference or "-",
        )
    return table


def _live_table(lived: Sequence[Live]) -> Table:
    table = Table(title="Predicted and real, two vLLM, lengths known")
    for name in (
        *("state", "rate", "requests", "preemptions", "TTFT error p50", "p90"),
        *("E2E error p50", "p90", "E2E bias", "better place named"),
    ):
        table.add_column(name, justify="left" if name == "state" else "right")
    for one in lived:
        v = one.verdict
        table.add_row(
            one.mode,
            f"{one.rate:g}",
            str(v.requests),
            str(v.preemptions),
            f"{v.ttft_error_median:.1%}",
            f"{v.ttft_error_p90:.1%}",
            f"{v.e2e_error_median:.1%}",
            f"{v.e2e_error_p90:.1%}",
            f"{v.e2e_bias:+.1%}",
            f"{v.pairs_right} of {v.pairs}",
        )
    return table
