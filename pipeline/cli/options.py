"""Options that several commands share, each with its default and the reason for it."""

from enum import StrEnum
from typing import Annotated

import typer

from pipeline.bus import BusSettings
from pipeline.errors import UsageError
from pipeline.policies import policies_help
from pipeline.subjects import Subjects, valid_token

DEFAULT_URL = "nats://127.0.0.1:4222"
BUS_PANEL = "Bus"
LOG_PANEL = "Logs and metrics"


class LogLevel(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class LogFormat(StrEnum):
    console = "console"
    json = "json"


Url = Annotated[
    str,
    typer.Option(
        envvar="ASTROLABE_URL",
        help="NATS server, user and password included where it asks for them.",
        rich_help_panel=BUS_PANEL,
    ),
]
Prefix = Annotated[
    str,
    typer.Option(
        envvar="ASTROLABE_PREFIX",
        help="First token of every subject: two stacks can share a server.",
        rich_help_panel=BUS_PANEL,
    ),
]
Credentials = Annotated[
    str | None,
    typer.Option(
        envvar="ASTROLABE_CREDENTIALS",
        help="NATS credentials file (.creds), where the server asks for one.",
        rich_help_panel=BUS_PANEL,
    ),
]
Policy = Annotated[str, typer.Option(help=f"Routing rule, one of:\n\n{policies_help()}")]
Level = Annotated[
    LogLevel,
    typer.Option(envvar="ASTROLABE_LOG_LEVEL", help="Least level.", rich_help_panel=LOG_PANEL),
]
Format = Annotated[
    LogFormat,
    typer.Option(
        envvar="ASTROLABE_LOG_FORMAT",
        help="For people or for machines.",
        rich_help_panel=LOG_PANEL,
    ),
]
MetricsPort = Annotated[
    int,
    typer.Option(
        envvar="ASTROLABE_METRICS_PORT",
        min=0,
        max=65535,
        help="Port of the Prometheus endpoint; 0 has none.",
        rich_help_panel=LOG_PANEL,
    ),
]
Seed = Annotated[
    int, typer.Option(min=0, max=2**31 - 1, help="Same seed, same requests and same choices.")
]


def bus_settings(url: str, prefix: str, credentials: str | None = None) -> BusSettings:
    """Checked settings of the bus."""
    if "://" not in url:
        raise UsageError(f"--url {url}: give a URL such as {DEFAULT_URL}")
    Subjects(prefix)
    return BusSettings(url=url, prefix=prefix, credentials_file=credentials)


def checked_name(name: str, option: str) -> str:
    """A name that becomes part of a subject. Raises UsageError naming the option."""
    if not valid_token(name):
        raise UsageError(f"{option} {name!r}: 1-64 characters of A-Z a-z 0-9 _ -")
    return name
