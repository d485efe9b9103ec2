"""The tables of `astrolabe status`, from data alone."""

from rich.markup import escape
from rich.table import Table

from pipeline.status import Status

STATE_COLOURS = {"ready": "green", "draining": "yellow", "dead": "red"}
STALE_S = 3.0  # a lease is renewed every second; dispatchers give up on it after this


def status_tables(status: Status) -> list[Table]:
    """Instances, streams, consumers, services; "none" where there are none. `to_json` has more."""
    return [_instances(status), _queues(status), _consumers(status), _services(status)]


def _table(title: str, texts: list[str], numbers: list[str]) -> Table:
    """Narrow: all columns of a common stack fit into 80 characters."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 2, 0, 0),
        header_style="underline",
    )
    for heading in texts:
        table.add_column(heading, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _instances(status: Status) -> Table:
    table = _table(
        "Instances",
        ["instance", "boot", "state", "model"],
        ["run", "wait", "inbox", "KV %", "preempt", "age s"],
    )
    for row in status.instances:
        age = f"[red]{row.age_s:.1f}[/]" if row.age_s > STALE_S else f"{row.age_s:.1f}"
        table.add_row(
            escape(row.instance),
            escape(row.boot.rpartition("-")[2]),  # before the dash stands when it started
            f"[{STATE_COLOURS.get(row.state, 'white')}]{row.state}[/]",
            escape(row.model),
            str(row.running),
            str(row.waiting),
            str(row.inbox_pending),
            f"{row.kv_used_percent:.1f}",
            str(row.preemptions),
            age,
        )
    return _or_none(table)


def _queues(status: Status) -> Table:
    table = _table("Streams", ["stream"], ["messages", "bytes", "subjects"])
    for row in status.queues:
        if row.found:
            table.add_row(row.stream, f"{row.messages:,}", _bytes(row.bytes), f"{row.subjects:,}")
        else:
            table.add_row(row.stream, "[red]missing[/]", "", "")
    return table


def _consumers(status: Status) -> Table:
    table = _table(
        "Consumers",
        ["stream", "consumer"],
        ["pending", "in hand", "redelivered", "pulls"],
    )
    for row in status.consumers:
        table.add_row(
            row.stream,
            escape(row.consumer),
            f"{row.pending:,}",
            f"{row.ack_pending:,}",
            f"{row.redelivered:,}",
            str(row.waiting_pulls) if row.waiting_pulls else "[red]0[/]",
        )
    return _or_none(table)


def _services(status: Status) -> Table:
    table = _table("Services", ["role", "id", "version", "metadata"], [])
    for row in status.services:
        metadata = " ".join(f"{k}={v}" for k, v in row.metadata.items() if not k.startswith("_"))
        table.add_row(escape(row.role), row.id, escape(row.version), escape(metadata))
    return _or_none(table)


def _or_none(table: Table) -> Table:
    if not table.row_count:
        table.add_row("[dim]none[/]")
    return table


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
