"""`astrolabe up | status`: a whole stack on this machine, and a look at any running one."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from pipeline.bus import Bus
from pipeline.cli.options import DEFAULT_URL, Credentials, Policy, Prefix, Url, bus_settings
from pipeline.errors import BusError, UsageError
from pipeline.policies import DEFAULT_POLICY, check_policy
from pipeline.process import configure_logs
from pipeline.subjects import DEFAULT_PREFIX
from workers.engines import ENGINES

DEFAULT_PORT = 4222

Instances = Annotated[
    int, typer.Option(min=1, max=64, help="Instances: a worker and a predictor each.")
]
Engine = Annotated[str, typer.Option(help=f"Engine of every instance: {', '.join(ENGINES)}.")]
EngineArg = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="A setting of every engine; repeat it."),
]

EnginePython = Annotated[
    Path | None,
    typer.Option(
        help="Interpreter that runs the workers, where the engine has an environment of its own."
    ),
]


def engine_arguments(engine: str, settings: list[str] | None) -> tuple[str, ...]:
    """Checked here, so that a wrong one is told before anything starts."""
    from workers.engines import make_engine

    make_engine(engine, settings or [])
    return tuple(part for setting in settings or [] for part in ("--engine-arg", setting))


def up(
    instances: Instances = 4,
    engine: Engine = "simulated",
    engine_arg: EngineArg = None,
    engine_python: EnginePython = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Of NATS, on loopback.")] = (
        DEFAULT_PORT
    ),
    seed: Annotated[
        int | None, typer.Option(min=0, help="Repeatable choices and noise; none draws fresh ones.")
    ] = None,
    policy: Policy = DEFAULT_POLICY,
    dispatchers: Annotated[int, typer.Option(min=1, max=16)] = 1,
    taggers: Annotated[int, typer.Option(min=1, max=16)] = 1,
    store: Annotated[
        Path | None, typer.Option(help="Keep JetStream's files here. Default: a temporary folder.")
    ] = None,
) -> None:
    """Keep a local stack running: NATS, taggers, dispatchers, instances, each its own process."""
    from pipeline.stack import LocalStack, StackSettings, run_stack

    check_policy(policy)
    console = Console()
    settings = StackSettings(
        instances=instances,
        taggers=taggers,
        dispatchers=dispatchers,
        engine=engine,
        policy=policy,
        port=port,
        store_dir=store,
        seed=seed,
        worker_args=engine_arguments(engine, engine_arg),
        engine_python=engine_python,
        restart=True,
    )
    configure_logs("warning")

    def on_ready(stack: LocalStack) -> None:
        console.print(
            f"[bold]ready[/]: {instances} instances, NATS at {stack.url}, logs in {stack.logs}\n"
            "In another terminal: [bold]astrolabe send 'Why is the sky blue?'[/]. Ctrl-C ends it.",
            highlight=False,
        )

    def on_warning(component: str, line: str) -> None:
        console.print(f"{component}: {line}", style="yellow", markup=False, highlight=False)

    uvloop.run(run_stack(settings, on_ready, on_warning))


def status(
    url: Url = DEFAULT_URL,
    prefix: Prefix = DEFAULT_PREFIX,
    credentials: Credentials = None,
    json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
) -> None:
    """Instances, queue depths, consumers and components of a running stack."""
    from pipeline.status import Status, read_status, to_json
    from pipeline.tables import status_tables

    async def read() -> Status:
        bus = await Bus.connect(bus_settings(url, prefix, credentials), name="status", timeout_s=3)
        try:
            return await read_status(bus)
        finally:
            await bus.close()

    configure_logs("error")
    try:
        found = asyncio.run(read())
    except BusError as error:
        raise UsageError(str(error)) from error
    if json:
        typer.echo(to_json(found))
        return
    console = Console()
    for table in status_tables(found):
        console.print(table)
