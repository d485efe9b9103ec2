"""`astrolabe health`: the health check of a container, or of whatever else supervises a process."""

import asyncio
from typing import Annotated

import typer

from pipeline.bus import Bus, BusSettings
from pipeline.cli.options import DEFAULT_URL, Credentials, Prefix, Url, bus_settings
from pipeline.errors import BusError, UsageError
from pipeline.health import ROLES, what_is_wrong
from pipeline.instance_name import resolve_instance
from pipeline.process import configure_logs
from pipeline.subjects import DEFAULT_PREFIX

CONNECT_WAIT_S = 2.0


def health(
    components: Annotated[
        list[str], typer.Argument(help=f"What runs here, one or more of: {', '.join(ROLES)}.")
    ],
    instance: Annotated[
        str | None,
        typer.Option(help="Of a worker or predictor, as it was given to the component."),
    ] = None,
    url: Url = DEFAULT_URL,
    prefix: Prefix = DEFAULT_PREFIX,
    credentials: Credentials = None,
) -> None:
    """Ask components on this host over the bus whether they work; status 1 and a line if not."""
    for component in components:
        if component not in ROLES:
            raise UsageError(f"component {component}: choose from {', '.join(ROLES)}")
    name = None if instance is None else resolve_instance(instance)
    configure_logs("error")
    found = asyncio.run(_ask(bus_settings(url, prefix, credentials), components, name))
    for wrong in found:
        typer.echo(wrong)
    raise typer.Exit(1 if found else 0)


async def _ask(settings: BusSettings, components: list[str], instance: str | None) -> list[str]:
    try:
        bus = await Bus.connect(settings, name="health", timeout_s=CONNECT_WAIT_S)
    except BusError as error:
        return [str(error)]
    try:
        answers = await asyncio.gather(
            *(what_is_wrong(bus, role, instance) for role in ROLES if role in components)
        )
    except BusError as error:
        return [str(error)]
    finally:
        await bus.close()
    return [answer for answer in answers if answer is not None]
