"""`astrolabe explain | drain | doctor`: one request, one instance, this machine and its server."""

import asyncio
import time
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from pipeline.bus import Bus, Message
from pipeline.cli.options import (
    DEFAULT_URL,
    Credentials,
    Prefix,
    Url,
    bus_settings,
    checked_name,
)
from pipeline.codec import decode, encode
from pipeline.conclusion import find_result
from pipeline.errors import BadRequest, BusError, UsageError
from pipeline.messages import DrainReply, Instance, Result
from pipeline.process import configure_logs
from pipeline.subjects import DEFAULT_CLIENT, DEFAULT_PREFIX

ASK_S = 2.0


def explain(
    request: Annotated[str, typer.Argument(help="Its id.")],
    client: Annotated[str, typer.Option(help="Whose it was.")] = DEFAULT_CLIENT,
    json: Annotated[
        bool, typer.Option("--json", help="The stored result without its text, as JSON.")
    ] = False,
    url: Url = DEFAULT_URL,
    prefix: Prefix = DEFAULT_PREFIX,
    credentials: Credentials = None,
) -> None:
    """Why a request went where it went: who was asked, what they said, what came of it.

    Results are kept for 15 minutes.
    """
    checked_name(client, "--client")
    checked_name(request, "request")
    configure_logs("error")

    async def read() -> Result | None:
        bus = await Bus.connect(bus_settings(url, prefix, credentials), name="explain", timeout_s=3)
        try:
            return await find_result(bus, client, request)
        finally:
            await bus.close()

    try:
        result = asyncio.run(read())
    except BusError as error:
        raise UsageError(str(error)) from error
    if result is None:
        raise UsageError(
            f"no result of {client}.{request}: it still runs, was never accepted, or ended more "
            "than 15 minutes ago"
        )
    if json:
        shown = msgspec.structs.replace(result, text="")
        typer.echo(msgspec.json.format(encode(shown)).decode())
        return
    from pipeline.explain import explained

    Console().print(explained(result))


def drain(
    instance: Annotated[str, typer.Argument(help="As `astrolabe status` shows it.")],
    wait_s: Annotated[
        float, typer.Option(min=0, max=3600, help="How long to wait until it is gone.")
    ] = 60.0,
    url: Url = DEFAULT_URL,
    prefix: Prefix = DEFAULT_PREFIX,
    credentials: Credentials = None,
) -> None:
    """Have one instance stop taking requests, finish or hand back what it has, and end.

    The same as SIGTERM to its worker, over the bus. Whoever supervises it may start it anew.
    """
    checked_name(instance, "instance")
    configure_logs("error")
    console = Console()

    async def run() -> float | None:
        bus = await Bus.connect(bus_settings(url, prefix, credentials), name="drain", timeout_s=3)
        try:
            return await _drain(bus, instance, wait_s, console)
        finally:
            await bus.close()

    try:
        took_s = asyncio.run(run())
    except BusError as error:
        raise UsageError(f"{instance}: {error}") from error
    if took_s is None:
        raise UsageError(f"{instance}: still there after {wait_s:g} s")
    console.print(f"{instance} is gone, after {took_s:.1f} s", highlight=False)


async def _drain(bus: Bus, instance: str, wait_s: float, console: Console) -> float | None:
    """Seconds until it said goodbye; None if it did not in time."""
    gone = asyncio.Event()

    def heard(message: Message) -> None:
        try:
            if decode(message.data, Instance).state == "dead":
                gone.set()
        except BadRequest:
            return

    await bus.subscribe(bus.subjects.heartbeat(instance), heard)
    started = time.monotonic()
    reply = await bus.request(bus.subjects.drain(instance), b"", timeout_s=ASK_S)
    told = decode(reply.data, DrainReply)
    console.print(f"{instance} drains: {told.in_hand} requests in hand", highlight=False)
    try:
        async with asyncio.timeout(wait_s):
            await gone.wait()
    except TimeoutError:
        return None
    return time.monotonic() - started


def doctor(
    json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
    url: Url = DEFAULT_URL,
    prefix: Prefix = DEFAULT_PREFIX,
    credentials: Credentials = None,
) -> None:
    """What would keep a stack from running well here: packages, devices, the NATS server's limits.

    Ends with status 1 where there is trouble. Looks, and changes nothing.
    """
    from pipeline.doctor import Finding, of_environment, of_local_server, of_server, worst
    from tagger.model import LengthModel

    configure_logs("error")
    findings: list[Finding] = [*of_environment(LengthModel.load), of_local_server()]
    findings += asyncio.run(of_server(bus_settings(url, prefix, credentials)))
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(findings)).decode())
    else:
        from rich.table import Table

        table = Table(show_lines=False)
        for name in ("what", "", "found", "do"):
            table.add_column(name)
        colours = {"well": "green", "note": "yellow", "trouble": "bold red"}
        for finding in findings:
            verdict = f"[{colours[finding.verdict]}]{finding.verdict}[/]"
            table.add_row(finding.what, verdict, finding.found, finding.do)
        Console().print(table)
    raise typer.Exit(1 if worst(findings) == "trouble" else 0)
