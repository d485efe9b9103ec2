"""Training data out of one's own traffic: prompts from the history stream, the lengths of their
answers from the stored results.

Both streams are read by direct get, which leaves nothing behind on the server. Results are kept for
15 minutes and 100,000 answers (docs/operations.md), so this is run while traffic flows, again and
again, and the files are joined: `astrolabe tagger collect`.
"""

from collections.abc import AsyncIterator, Callable

import msgspec
import structlog

from pipeline.bus import Bus, StoredMessage
from pipeline.bus.topology import RESULTS_MAX
from pipeline.codec import decode
from pipeline.errors import BadRequest, UsageError
from pipeline.messages import Request, Usage
from pipeline.subjects import last_tokens
from tagger.conversation import conversation_of
from tagger.dataset import Row

log = structlog.get_logger()

READ_AT_ONCE = 256
"""Messages carry their text: a bound on what is held at a time."""

Count = Callable[[str], int]


class _Finished(msgspec.Struct, frozen=True):
    """What of a Result is needed; the text is not even decoded."""

    id: str
    client: str
    model: str
    status: str
    finish_reason: str | None = None
    usage: Usage | None = None


async def read_traffic(bus: Bus, count: Count, *, model: str | None = None) -> list[Row]:
    """A row for each request that ended by itself and whose prompt is still in the history.

    Answers that were cut (by `max_tokens`, or the model's room) are left out: how long they wanted
    to be, nobody knows. `count` gives the tokens of earlier messages of a chat. `model` (its slug)
    narrows it. Raises UsageError where nothing was found, BusError from the bus.
    """
    lengths = await _lengths(bus, model)
    rows = []
    stream, subject = bus.subjects.history_stream, bus.subjects.history("*", "*")
    async for message in _messages(bus, stream, subject):
        client, _ = last_tokens(message.subject, 2)
        try:
            request = decode(message.data, Request)
        except BadRequest:
            continue  # history can be set to hold less than the request
        if (usage := lengths.pop(f"{client}.{request.id}", None)) is not None:
            rows.append(_row(request, client, usage, count))
    log.info("traffic_read", rows=len(rows), results_without_prompt=len(lengths))
    if not rows:
        raise UsageError("no request in the history whose answer ended lately, by itself")
    return rows


async def _lengths(bus: Bus, model: str | None) -> dict[str, Usage]:
    """By client and request."""
    found: dict[str, Usage] = {}
    stream, subject = bus.subjects.results_stream, bus.subjects.result("*", "*")
    async for message in _messages(bus, stream, subject):
        one = decode(message.data, _Finished)
        if one.usage is None or one.finish_reason != "stop":
            continue
        if model is None or one.model == model:
            found[f"{one.client}.{one.id}"] = one.usage
        if len(found) == RESULTS_MAX:
            break
    return found


async def _messages(bus: Bus, stream: str, subject: str) -> AsyncIterator[StoredMessage]:
    """All that lie in a stream now, a bounded number of them in hand."""
    start = 1
    while stored := await bus.jetstream.read(stream, subject, start=start, limit=READ_AT_ONCE):
        for message in stored:
            yield message
        start = stored[-1].sequence + 1


def _row(request: Request, client: str, usage: Usage, count: Count) -> Row:
    """As the tagger would read it: a chat's last message, and what came before."""
    if request.messages is None:
        return Row(
            prompt=request.prompt or "",
            prompt_tokens=usage.prompt_tokens,
            response_tokens=usage.completion_tokens,
            conv=f"{client}.{request.id}",
        )
    counts = [count(message.content) for message in request.messages]
    before = conversation_of(request.messages, counts)
    return Row(
        prompt=request.messages[-1].content,
        prompt_tokens=counts[-1],
        response_tokens=usage.completion_tokens,
        first_turn=before.turn == 0,
        turn=before.turn,
        context_tokens=before.context_tokens,
        prev_response_tokens=before.previous_tokens if before.turn else -1,
        # Turns of one conversation begin alike: they are kept on one side of a split.
        conv=f"{client}.{request.messages[0].content[:256]}",
    )
