"""Recorded requests out of a stack's HISTORY stream."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from pipeline.bus import Bus, Message
from pipeline.bus.jetstream import StoredMessage
from pipeline.codec import decode
from pipeline.errors import BadRequest, UsageError
from pipeline.messages import Request
from pipeline.replay.recorded import RECORDS_MAX, Recorded
from pipeline.subjects import last_tokens

log = structlog.get_logger()

TIME_HEADER = "Nats-Time-Stamp"
WAITING_MAX = 4_096
SILENCE_S = 3_600.0
"""Longest pause between two requests that is waited for at the original speed."""


@dataclass(frozen=True, slots=True)
class Span:
    """Which part of the history: by time (ms since 1970), by sequence, by client."""

    since_ms: float = 0.0
    until_ms: float = float("inf")
    first_sequence: int = 1
    last_sequence: int | None = None
    client: str = "*"
    limit: int = RECORDS_MAX


async def read_history(bus: Bus, span: Span) -> list[Recorded]:
    """In the order in which they were accepted. Raises UsageError where there is none, BusError."""
    records: list[Recorded] = []
    start, skipped = span.first_sequence, 0
    while len(records) < span.limit:
        stored = await bus.jetstream.read(
            bus.subjects.history_stream, bus.subjects.history(span.client, "*"), start=start
        )
        for message in stored:
            if span.last_sequence is not None and message.sequence > span.last_sequence:
                stored = []
                break
            at_ms = _at_ms(message.headers[TIME_HEADER])
            if not span.since_ms <= at_ms <= span.until_ms or len(records) >= span.limit:
                continue
            record = _record(message, at_ms)
            skipped += record is None
            if record is not None:
                records.append(record)
        if not stored:  # a batch may end early: the server bounds its bytes, too
            break
        start = stored[-1].sequence + 1
    if skipped:
        log.warning("history_unreadable", requests=skipped)
    if not records:
        raise UsageError("the history holds no request of this span (it is kept for 24 hours)")
    return records


async def follow_original(bus: Bus, span: Span) -> AsyncIterator[tuple[float, Recorded]]:
    """The same, as JetStream itself gives them out again at the old pace: each with the number of
    seconds since the first at which it should have come.

    Raises UsageError where more came at once than WAITING_MAX and some were lost: never in silence.
    """
    stream = bus.subjects.history_stream
    last = (await bus.jetstream.stream_info(stream))["state"]["last_seq"]
    last = last if span.last_sequence is None else min(last, span.last_sequence)
    queue: asyncio.Queue[Message] = asyncio.Queue(WAITING_MAX)
    inbox = bus.new_inbox()
    lost = 0

    def heard(message: Message) -> None:
        nonlocal lost
        if queue.full():
            lost += 1
        else:
            queue.put_nowait(message)

    subscription = await bus.subscribe(inbox, heard)
    config: dict[str, object] = {
        "deliver_subject": inbox,
        **_start(span),
        "ack_policy": "none",
        "replay_policy": "original",
        "filter_subject": bus.subjects.history(span.client, "*"),
        "inactive_threshold": int(10e9),
        "mem_storage": True,
    }
    made = await bus.jetstream.api(
        f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config}
    )
    first_ms: float | None = None
    given = 0
    try:
        # What it has given out by now is pending no more.
        while given < span.limit and (made["num_pending"] or not queue.empty() or given):
            try:
                async with asyncio.timeout(SILENCE_S):
                    message = await queue.get()
            except TimeoutError:
                raise UsageError(f"nothing came for {SILENCE_S / 60:g} minutes") from None
            if lost:
                raise UsageError(f"{lost} requests came too fast and were not sent; end it earlier")
            sequence, at_ms, pending = _delivered(message.reply)
            if sequence > last or at_ms > span.until_ms:
                return
            record = _record(StoredMessage(message.subject, sequence, message.data, {}), at_ms)
            if record is not None and span.since_ms <= at_ms <= span.until_ms:
                first_ms = at_ms if first_ms is None else first_ms
                given += 1
                yield (at_ms - first_ms) / 1000, record
            if sequence == last or not pending:
                return
    finally:
        await subscription.close()


def _start(span: Span) -> dict[str, object]:
    """Where JetStream begins: it would wait through everything before in real time."""
    if span.since_ms:
        since = datetime.fromtimestamp(span.since_ms / 1000, UTC)
        return {"deliver_policy": "by_start_time", "opt_start_time": since.isoformat()}
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": span.first_sequence}


def _record(message: StoredMessage, at_ms: float) -> Recorded | None:
    client, model = last_tokens(message.subject, 2)
    try:
        request = decode(message.data, Request)
    except BadRequest:
        return None
    return Recorded(at_ms=at_ms, client=client, model=model, request=request)


def _at_ms(text: str) -> float:
    """Of the server's time stamp, which has nanoseconds."""
    whole, _, rest = text.removesuffix("Z").partition(".")
    seconds = datetime.fromisoformat(f"{whole}+00:00").timestamp()
    return seconds * 1000 + float(f"0.{rest or '0'}") * 1000


def _delivered(reply: str) -> tuple[int, float, int]:
    """Stream sequence, time in ms and number of messages still to come, of a delivery's subject:
    `$JS.ACK.[domain.account.]stream.consumer.delivered.stream_seq.consumer_seq.time.pending[.x]`.
    """
    tokens = reply.split(".")
    at = 2 if len(tokens) == 9 else 4
    sequence, _, time_ns, pending = (int(token) for token in tokens[at + 3 : at + 7])
    return sequence, time_ns / 1e6, pending
