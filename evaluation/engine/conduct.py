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

from engines.folder import SGLANG, TINY_LLAMA, VLLM, VLLM_ENVIRONMENT, is_complete, python_of
from evaluation.engine import ours, theirs, trace
from evaluation.engine.cases import BLOCK_SIZE, groups
from evaluation.engine.compare import Comparison, compare
from evaluation.engine.judge import Errors, Verdict, judge
from evaluation.engine.live import INSTANCES, Placer
from evaluation.engine.sglang_cases import groups as sglang_groups
from pipeline.bus import Bus
from pipeline.errors import AstrolabeError
from pipeline.stack import LocalStack
from pipeline.stack_settings import StackSettings

SIZES = (6, 16, 40)
"""Requests of a wave: some batch places taken, most, and a queue with preemptions."""
WAVES, QUICK_WAVES = 10, 3
WARM_UP_WAVES = 6
"""From which the predictors learn how long a step takes here."""
MODES = {"exact": "exact=true", "statistics": "exact=false"}
READY_S = 240.0
ENGINE_ARGS = (
    f"--dtype bfloat16 --enforce-eager --block-size {BLOCK_SIZE} --num-gpu-blocks-override 61 "
    "--kv-cache-memory-bytes 67108864 --max-model-len 512 --max-num-seqs 12 "
    "--max-num-batched-tokens 128 --no-enable-prefix-caching"
)
"""So small that queues, chunks and preemptions really happen."""
PACED = "--scheduler-cls evaluation.engine.paced.PacedScheduler"


@dataclass(frozen=True, slots=True)
class Live:
    """One load in one mode."""

    mode: str
    size: int
    """Requests of a wave."""
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
    lived = asyncio.run(_live(QUICK_WAVES if quick else WAVES, console))
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
    if is_complete(SGLANG):
        compared += sglang_step_by_step(seeds, console)
    return compared


def sglang_step_by_step(seeds: int, console: Console) -> list[Comparison]:
    """The same with SGLang, whose requests come when they come."""
    compared = []
    for group in track(sglang_groups(seeds), "SGLang", console=console, transient=True):
        for traced in theirs.run_sglang(group):
            case = traced.case
            prompts = {arrival.key: len(arrival.prompt) for arrival in case.arrivals}
            ran = ours.run(case, group.limits)
            compared.append(compare(f"sglang {case.name}", prompts, traced.steps, ran))
    return compared


async def _live(waves: int, console: Console) -> list[Live]:
    """Part two: predictions and outcomes."""
    os.environ.update(VLLM_ENVIRONMENT)  # for the workers
    lived = []
    for mode, setting in MODES.items():
        args = ("model=" + str(TINY_LLAMA), f"args={ENGINE_ARGS} {PACED}", setting)
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
            lived += await _loads(stack, mode, waves, console)
        finally:
            await stack.stop()
    return lived


async def _loads(stack: LocalStack, mode: str, waves: int, console: Console) -> list[Live]:
    bus = await Bus.connect(stack.bus_settings, name="evaluation")
    lived = []
    try:
        placer = Placer(bus, seed=0)
        await placer.listen()
        await placer.run("warm-up", trace.make(WARM_UP_WAVES, SIZES[1], seed=0))
        for size in SIZES:
            with console.status(f"{mode}: {waves} waves of {size}"):
                happened = await placer.run(f"{mode}-{size}", trace.make(waves, size, seed=size))
            verdict = judge(happened.runs, happened.pairs)
            lived.append(Live(mode, size, verdict, happened.unanswered_probes))
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
    """Each load twice: all requests, and those that nobody came behind."""
    table = Table(title="Predicted and real, two vLLM, lengths known")
    for name in (
        *("state", "a wave", "judged", "requests", "preemptions", "TTFT error p50", "p90"),
        *("E2E error p50", "p90", "E2E bias", "better place named"),
    ):
        table.add_column(name, justify="left" if name in ("state", "judged") else "right")
    for one in lived:
        verdict = one.verdict
        pairs = f"{verdict.pairs_right} of {verdict.pairs}"
        _add(table, one, "all", verdict.all, str(verdict.preemptions), "")
        if verdict.undisturbed is not None:
            _add(table, one, "undisturbed", verdict.undisturbed, "", pairs)
    return table


def _add(
    table: Table, live: Live, judged: str, errors: Errors, preemptions: str, pairs: str
) -> None:
    table.add_row(
        live.mode,
        str(live.size),
        judged,
        str(errors.requests),
        preemptions,
        f"{errors.ttft_error_median:.1%}",
        f"{errors.ttft_error_p90:.1%}",
        f"{errors.e2e_error_median:.1%}",
        f"{errors.e2e_error_p90:.1%}",
        f"{errors.e2e_bias:+.1%}",
        pairs,
    )
