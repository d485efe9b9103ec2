"""Server-sent events, and the counting of tokens in them."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

import msgspec

from pipeline.errors import EngineFailed
from workers.engine import Delta
from workers.openai_engine import wire

DATA = b"data:"
DONE = b"[DONE]"


class Lines(Protocol):
    """A body that comes line by line."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...


async def events(lines: Lines) -> AsyncGenerator[bytes, None]:
    """The data of each event up to the end mark. Other fields and comments are passed over; an
    event that is spread over several data lines is put together."""
    data: list[bytes] = []
    async for line in lines:
        line = line.rstrip(b"\r\n")
        if line.startswith(DATA):
            data.append(line[len(DATA) :].removeprefix(b" "))
            continue
        if line or not data:
            continue
        joined, data = b"\n".join(data), []
        if joined == DONE:
            return
        yield joined
    if data and (joined := b"\n".join(data)) != DONE:
        yield joined


class Counted:
    """Counts one answer. A server that gives counts is believed; one that gives none until the end
    sends a token an event, as far as anybody can tell, and is corrected then."""

    def __init__(self) -> None:
        self._tokens = 0
        self._prompt_tokens = 0
        self._total: int | None = None
        self._finish: str | None = None

    def take(self, chunk: wire.Chunk) -> Delta | None:
        """What the event adds; None where that is nothing yet."""
        if chunk.usage is not None:
            self._prompt_tokens = chunk.usage.prompt_tokens or self._prompt_tokens
            self._total = chunk.usage.completion_tokens
        text = "".join(choice.added for choice in chunk.choices)
        for choice in chunk.choices:
            self._finish = choice.finish_reason or self._finish
        tokens = self._added(chunk, text)
        self._tokens += tokens
        return Delta(text, tokens) if tokens or text else None

    def last(self) -> Delta:
        """What is still to be counted, with the reason of the end. Raises EngineFailed where the
        stream ended without one."""
        if self._finish is None:
            raise EngineFailed("the server's stream ended in the middle of the answer")
        rest = max(0, (self._total or 0) - self._tokens)
        return Delta("", rest, wire.finish_reason(self._finish), prompt_tokens=self._prompt_tokens)

    def _added(self, chunk: wire.Chunk, text: str) -> int:
        if chunk.usage is not None and chunk.usage.completion_tokens is not None:
            return max(0, chunk.usage.completion_tokens - self._tokens)
        if given := sum(len(choice.token_ids or ()) for choice in chunk.choices):
            return given
        return 1 if text else 0


def decoded(data: bytes) -> wire.Chunk:
    """Raises EngineFailed for what is no event of this API."""
    try:
        return wire.decode_chunk(data)
    except msgspec.DecodeError as error:
        raise EngineFailed(f"the server sent an event that cannot be read: {error}") from error
