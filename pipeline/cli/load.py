"""`astrolabe send | demo`: one prompt, a file of prompts, or a whole stack under load."""

import asyncio
import contextlib
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pipeline.bus import BusSettings
from pipeline.cli.options import (
    DEFAULT_URL,
    Credentials,
    Policy,
    Prefix,
    Seed,
    Url,
    bus_settings,
    checked_name,
)
from pipeline.cli.stack import EngineArg, EnginePython, Instances, engine_arguments
from pipeline.client import Client, as_error
from pipeline.errors import BusError, RequestError, UsageError
from pipeline.load import Outcome, Tally, arrival_offsets_s, drive
from pipeline.messages import Request
from pipeline.policies import DEFAULT_POLICY, check_policy
from pipeline.process import configure_logs
from pipeline.prompts import as_request, choose, read_prompts
from pipeline.report import Summary, as_json, render, summarise, write_json
from pipeline.stack import LocalStack, StackSettings
from pipeline.subjects import DEFAULT_CLIENT, DEFAULT_PREFIX

DEMO_RATE = 9.0
DEMO_REQUESTS = 240
DEMO_ENGINE = ("max_num_seqs=16", "kv_blocks=288")
"""An A30's step times with a quarter of its memory: at this rate four such instances are busy
enough that requests queue and some are preempted, and there is something to see."""
DEMO_RESULTS = Path("bench-results") / "demo.json"
PROGRESS_LINE_EVERY_S = 5.0
CONNECT_S = 3.0  # somebody sits there and waits

Json = Annotated[Path | None, typer.Option(help="Also write the figures to this file.")]


def send(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; its answer streams.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="Instead: a .jsonl[.gz] of prompts. `sample` is the bundled one."),
    ] = None,
    rate: Annotated[
        float, typer.Option(min=0.01, max=10_000, help="With --file: requests a second, Poisson.")
    ] = 5.0,
    requests: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="With --file: how many. Default: all.")
    ] = None,
    seed: Seed = 0,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Of the one prompt.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Name of the model, where there are several.")
    ] = (None),
    deadline_ms: Annotated[int | None, typer.Option(min=1, max=86_400_000)] = None,
    client: Annotated[str, typer.Option(help="Name on the bus.")] = DEFAULT_CLIENT,
    json: Json = None,
    url: Url = DEFAULT_URL,
    prefix: Prefix = DEFAULT_PREFIX,
    credentials: Credentials = None,
) -> None:
    """Stream the answer to one prompt, or drive load from a file and print a table."""
    checked_name(client, "--client")
    bus = bus_settings(url, prefix, credentials)
    configure_logs("error")
    if (prompt is None) == (file is None):
        raise UsageError("give either a prompt or --file")
    _refuse_the_others(
        prompt,
        {"--requests": requests, "--json": json},
        {"--max-tokens": max_tokens, "--model": model, "--deadline-ms": deadline_ms},
    )
    if prompt is not None:
        request = Request(
            id=f"send-{secrets.token_hex(6)}",
            prompt=prompt,
            model=model,
            max_tokens=max_tokens,
            deadline_ms=deadline_ms,
        )
        uvloop.run(_answer(bus, client, request))
        return
    made = make_requests(None if str(file) == "sample" else file, requests, seed)
    summary = uvloop.run(run_load(bus, client, made, rate, seed))
    show(summary, json, seed=seed, rate=rate)


def _refuse_the_others(
    prompt: str | None, with_file: Mapping[str, object], with_prompt: Mapping[str, object]
) -> None:
    """An option that would have no effect is an error, not a surprise."""
    for option, value in (with_file if prompt is not None else with_prompt).items():
        if value is not None:
            needed = "--file" if prompt is not None else "a prompt"
            raise UsageError(f"{option}: only together with {needed}")


def demo(
    instances: Instances = 4,
    requests: Annotated[int, typer.Option(min=1, max=100_000)] = DEMO_REQUESTS,
    rate: Annotated[
        float, typer.Option(min=0.01, max=10_000, help="Requests a second, Poisson.")
    ] = DEMO_RATE,
    seed: Seed = 1,
    policy: Policy = DEFAULT_POLICY,
    engine: Annotated[str, typer.Option(help="Engine of every instance.")] = "simulated",
    engine_arg: EngineArg = None,
    engine_python: EnginePython = None,
    json: Annotated[Path, typer.Option(help="Where the figures go.")] = DEMO_RESULTS,
) -> None:
    """Start a local stack, send the bundled sample through it, print what happened, end it.

    Ctrl-C ends the load, and still prints what there is.
    """
    check_policy(policy)
    configure_logs("error")
    engine_settings = [*(DEMO_ENGINE if engine == "simulated" else ()), *(engine_arg or ())]
    settings = StackSettings(
        instances=instances,
        engine=engine,
        policy=policy,
        seed=seed,
        worker_args=engine_arguments(engine, engine_settings),
        engine_python=engine_python,
        worker_grace_s=2.0,
    )
    made = make_requests(None, requests, seed)
    summary = uvloop.run(_demo(settings, made, rate, seed))
    show(summary, json, seed=seed, rate=rate, instances=instances, policy=policy)
    if summary.failed:
        raise typer.Exit(1)


async def _demo(
    settings: StackSettings, requests: Sequence[Request], rate: float, seed: int
) -> Summary:
    console = Console()
    stack = LocalStack(settings)
    with _stop_on_signals() as stop:
        with console.status(
            f"starting NATS, a tagger, a dispatcher, {settings.instances} instances"
        ):
            await stack.start()
        try:
            return await run_load(stack.bus_settings, DEFAULT_CLIENT, requests, rate, seed, stop)
        finally:
            with console.status("stopping the stack"):
                await stack.stop()


def make_requests(file: Path | None, count: int | None, seed: int) -> list[Request]:
    """Seeded requests: the same seed gives the same prompts in the same order."""
    rows = read_prompts(file)
    chosen = choose(rows, count or len(rows), seed)
    run = secrets.token_hex(4)  # ids are new every time: a repeated id would be answered from store
    return [as_request(row, f"{run}-{number:06d}") for number, row in enumerate(chosen)]


async def run_load(
    bus: BusSettings,
    client_name: str,
    requests: Sequence[Request],
    rate: float,
    seed: int,
    stop: asyncio.Event | None = None,
) -> Summary:
    """Send the requests at seeded Poisson times, with progress, and sum up."""
    offsets = arrival_offsets_s(len(requests), rate, seed)
    return await run_load_at(bus, client_name, requests, offsets, stop)


async def run_load_at(
    bus: BusSettings,
    client_name: str,
    requests: Sequence[Request],
    offsets: Sequence[float],
    stop: asyncio.Event | None = None,
) -> Summary:
    """Send each request when it is due (seconds from now), with progress, and sum up."""
    with contextlib.ExitStack() as cleanup:
        if stop is None:
            stop = cleanup.enter_context(_stop_on_signals())
        async with await Client.connect(bus, client=client_name, timeout_s=CONNECT_S) as client:
            started = time.monotonic()
            outcomes = await _with_progress(client, requests, offsets, stop)
            duration_s = time.monotonic() - started
    return summarise(outcomes, duration_s)


async def _with_progress(
    client: Client, requests: Sequence[Request], offsets: Sequence[float], stop: asyncio.Event
) -> list[Outcome]:
    console = Console()
    columns = (
        TextColumn("{task.fields[sent]} sent"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("answered, {task.fields[failed]} failed, TTFT p50 {task.fields[ttft]}"),
        TimeElapsedColumn(),
    )
    if not console.is_terminal:
        return await drive(client, requests, offsets, on_change=_line_printer(console), stop=stop)
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(requests), sent=0, failed=0, ttft="-")

        def show(tally: Tally) -> None:
            ttft = "-" if tally.ttft_p50_ms is None else f"{tally.ttft_p50_ms:.0f} ms"
            progress.update(
                task,
                completed=tally.finished,
                sent=tally.sent,
                failed=tally.failed,
                ttft=ttft,
            )

        return await drive(client, requests, offsets, on_change=show, stop=stop)


def _line_printer(console: Console) -> Callable[[Tally], None]:
    """Progress for a log file: one line now and then, and one at the end."""
    printed_at = time.monotonic()

    def show(tally: Tally) -> None:
        nonlocal printed_at
        if time.monotonic() - printed_at < PROGRESS_LINE_EVERY_S and tally.finished < tally.total:
            return
        printed_at = time.monotonic()
        console.print(
            f"{tally.sent} of {tally.total} sent, {tally.finished} answered, {tally.failed} failed",
            highlight=False,
        )

    return show


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[asyncio.Event]:
    """An event that Ctrl-C or SIGTERM sets, instead of tearing the loop down."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _answer(bus: BusSettings, client_name: str, request: Request) -> None:
    """Print the tokens of one answer as they come."""
    try:
        async with (
            await Client.connect(bus, client=client_name, timeout_s=CONNECT_S) as client,
            contextlib.aclosing(client.stream(request)) as events,
        ):
            async for event in events:
                if event.event == "restart":
                    sys.stdout.write("\n[the instance was lost; starting again]\n")
                sys.stdout.write(event.text)
                sys.stdout.flush()
                if event.error is not None:
                    raise as_error(event.error)
        sys.stdout.write("\n")
    except RequestError as error:
        raise UsageError(f"{error.code}: {error.message}") from error
    except BusError as error:
        raise UsageError(str(error)) from error


def show(summary: Summary, path: Path | None, **how: object) -> None:
    """The table; and the figures, with how they were made, to `path`."""
    Console().print(render(summary))
    if path is not None:
        write_json(path, as_json(summary, **how))
        Console().print(f"figures: {path}", highlight=False)
