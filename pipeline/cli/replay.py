"""`astrolabe replay`: recorded requests again, against this or another stack."""

import asyncio
import secrets
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from pipeline.bus import Bus, BusSettings
from pipeline.cli.load import Json, run_load_at, show
from pipeline.cli.options import (
    DEFAULT_URL,
    Credentials,
    Prefix,
    Url,
    bus_settings,
    checked_name,
)
from pipeline.client import Client
from pipeline.errors import BusError, UsageError
from pipeline.load import Outcome, follow
from pipeline.process import configure_logs
from pipeline.replay.history import Span, follow_original, read_history
from pipeline.replay.plan import fresh, plan
from pipeline.replay.recorded import RECORDS_MAX, Recorded, read_records, write_records
from pipeline.report import Summary, summarise
from pipeline.subjects import DEFAULT_PREFIX

CLIENT = "replay"
CONNECT_S = 3.0


def replay(
    to_prefix: Annotated[
        str | None,
        typer.Option(help="Prefix of the stack that gets the requests. Default: the same."),
    ] = None,
    to_url: Annotated[
        str | None, typer.Option(help="Its server. Default: the one that is read from.")
    ] = None,
    same_stack: Annotated[
        bool,
        typer.Option("--same-stack", help="Yes, into the very stack that they are read from."),
    ] = False,
    since: Annotated[
        str | None, typer.Option(help="From then on, such as 2026-12-01T08:00:00+00:00.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Up to then.")] = None,
    first: Annotated[int, typer.Option(min=1, help="From this sequence of HISTORY on.")] = 1,
    last: Annotated[int | None, typer.Option(min=1, help="Up to this sequence.")] = None,
    client: Annotated[str, typer.Option(help="Only this client's. `*`: everybody's.")] = "*",
    requests: Annotated[
        int, typer.Option(min=1, max=RECORDS_MAX, help="At most so many.")
    ] = 100_000,
    speed: Annotated[float, typer.Option(help="2 is twice the old pace.")] = 1.0,
    original: Annotated[
        bool,
        typer.Option("--original", help="Let JetStream give them out again at the old pace."),
    ] = False,
    record: Annotated[
        Path | None, typer.Option(help="Write them to this .jsonl[.gz] instead of sending.")
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from", help="Read them from such a file instead.")
    ] = None,
    json: Json = None,
    url: Url = DEFAULT_URL,
    prefix: Prefix = DEFAULT_PREFIX,
    credentials: Credentials = None,
) -> None:
    """Send yesterday's requests again, on their old times, and print what happened.

    They are read from the HISTORY stream (24 hours) or a file, get fresh ids, are sent as client
    `replay`, and say in their metadata whose they were (`replay_of`). The lag that is reported is
    the replay's own: how late it sent what was due.
    """
    configure_logs("error")
    if client != "*":
        checked_name(client, "--client")
    source = bus_settings(url, prefix, credentials)
    target = bus_settings(to_url or url, to_prefix or prefix, credentials)
    if from_file is None and record is None and source == target and not same_stack:
        raise UsageError(
            "that is the stack they are read from: --to-prefix, --to-url, or --same-stack"
        )
    if original and (from_file is not None or record is not None or speed != 1.0):
        raise UsageError(
            "--original: is HISTORY itself at the old pace; no --from, --record, --speed"
        )
    span = Span(
        since_ms=_when(since, "--since", 0.0),
        until_ms=_when(until, "--until", float("inf")),
        first_sequence=first,
        last_sequence=last,
        client=client,
        limit=requests,
    )
    console = Console()
    if original:
        summary = uvloop.run(_original(source, target, span, console))
    else:
        records = read_records(from_file)[:requests] if from_file else _read(source, span)
        if record is not None:
            console.print(f"{write_records(record, records)} requests in {record}")
            return
        made, offsets = plan(records, f"replay-{secrets.token_hex(4)}", speed)
        summary = uvloop.run(run_load_at(target, CLIENT, made, offsets))
    show(summary, json, speed=speed, original=original)
    lag = summary.send_lag_ms
    console.print(f"replay's own lag: p50 {lag.p50:.1f} ms, p99 {lag.p99:.1f} ms", highlight=False)


def _when(text: str | None, option: str, default: float) -> float:
    """ms since 1970; without an offset it is this machine's time."""
    if text is None:
        return default
    try:
        return datetime.fromisoformat(text).timestamp() * 1000
    except ValueError:
        raise UsageError(f"{option} {text}: write it as 2026-12-01T08:00:00+00:00") from None


def _read(source: BusSettings, span: Span) -> list[Recorded]:
    async def read() -> list[Recorded]:
        bus = await Bus.connect(source, name="replay-reader", timeout_s=CONNECT_S)
        try:
            return await read_history(bus, span)
        finally:
            await bus.close()

    try:
        return asyncio.run(read())
    except BusError as error:
        raise UsageError(str(error)) from error


async def _original(
    source: BusSettings, target: BusSettings, span: Span, console: Console
) -> Summary:
    """What comes from JetStream is sent at once; it is late by what JetStream was late."""
    run = f"replay-{secrets.token_hex(4)}"
    reader = await Bus.connect(source, name="replay-reader", timeout_s=CONNECT_S)
    tasks: list[asyncio.Task[Outcome]] = []
    started: float | None = None
    try:
        async with await Client.connect(target, client=CLIENT, timeout_s=CONNECT_S) as client:
            with console.status("replaying at the old pace"):
                async for offset_s, record in follow_original(reader, span):
                    started = time.monotonic() if started is None else started
                    request = fresh(record, f"{run}-{len(tasks):06d}")
                    tasks.append(asyncio.create_task(follow(client, request, started + offset_s)))
                outcomes = list(await asyncio.gather(*tasks))
    finally:
        await reader.close()
    if started is None:
        raise UsageError("the history holds no request of this span (it is kept for 24 hours)")
    return summarise(outcomes, time.monotonic() - started)
