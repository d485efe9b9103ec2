"""SGLang's own API: what is asked of `/generate`, and the events that it answers with.

Its streams repeat the whole answer in every event, unless the server was started to send what was
added; its token counts always go up. An end may be an error, and an error may be an event under
HTTP 200.
"""

from typing import Any

import msgspec

from pipeline.errors import EngineFailed, RequestError
from pipeline.messages import FinishReason, Request
from workers.engine import Delta
from workers.openai_engine.wire import error_of_event, error_of_status

REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}
ABORT = "abort"
SAMPLING = ("temperature", "top_p", "stop")


class Reason(msgspec.Struct, frozen=True):
    """Why an answer ended; the last three are an abort's."""

    type: str
    message: str = ""
    status_code: int | None = None
    err_type: str | None = None


class Meta(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    num_retractions: int = 0
    finish_reason: Reason | None = None


class Event(msgspec.Struct, frozen=True):
    """One of a stream; of an error only `error`."""

    text: str = ""
    meta_info: Meta = Meta()
    error: Any = None


class Tokenized(msgspec.Struct, frozen=True):
    """Answer of `/v1/tokenize`."""

    tokens: list[int]


_decode = msgspec.json.Decoder(Event).decode
decode_tokenized = msgspec.json.Decoder(Tokenized).decode


def tokenize_body(request: Request) -> dict[str, Any]:
    """A chat goes through the model's own template, as one for `/v1/chat/completions` does."""
    if request.messages is None:
        return {"prompt": request.prompt}
    return {"messages": [{"role": m.role, "content": m.content} for m in request.messages]}


def generate_body(
    request: Request, ids: list[int], room: int, rid: str, priority: int | None
) -> dict[str, Any]:
    """`room` is how many tokens may follow `ids`: SGLang refuses the sum beyond it, we clip."""
    sampling: dict[str, Any] = {"max_new_tokens": min(request.max_tokens or room, room)}
    for name in SAMPLING:
        if (value := getattr(request, name)) is not None:
            sampling[name] = value
    if request.seed is not None:
        sampling["sampling_seed"] = request.seed
    if request.ignore_eos:
        sampling["ignore_eos"] = True
    body = {"input_ids": ids, "rid": rid, "stream": True, "sampling_params": sampling}
    if priority is not None:
        body["priority"] = priority
    return body


class Counted:
    """Makes deltas of one stream's events."""

    def __init__(self, *, incremental: bool) -> None:
        self._incremental = incremental
        self._chars = 0
        self._tokens = 0
        self.ended: Reason | None = None

    def take(self, data: bytes) -> Delta | None:
        """What the event adds; None where that is nothing.

        Raises the RequestError that an event of an error is, and EngineFailed for one that cannot
        be read. An abort is for the caller to judge, by `ended`.
        """
        try:
            event = _decode(data)
        except msgspec.DecodeError as error:
            raise EngineFailed(f"SGLang sent an event that cannot be read: {error}") from error
        if event.error is not None:
            raise error_of_event(event.error)
        meta = event.meta_info
        text = event.text if self._incremental else event.text[self._chars :]
        tokens = max(0, meta.completion_tokens - self._tokens)
        self._chars += len(text)
        self._tokens += tokens
        self.ended = meta.finish_reason
        if self.ended is not None and self.ended.type != ABORT:
            return Delta(
                text,
                tokens,
                finish_reason(self.ended.type),
                prompt_tokens=meta.prompt_tokens,
                preemptions=meta.num_retractions,
            )
        return Delta(text, tokens) if text or tokens else None


def finish_reason(told: str) -> FinishReason:
    """Ours of SGLang's. Raises EngineFailed for one that is no end of an answer."""
    known = REASONS.get(told)
    if known is None:
        raise EngineFailed(f"SGLang ended the answer with {told!r}")
    return known


def error_of_abort(reason: Reason) -> RequestError:
    """What an abort means that we did not ask for: a full queue, a bad request, or a failure."""
    if reason.status_code is None:
        return EngineFailed(f"SGLang aborted the request: {reason.message or 'without a reason'}")
    return error_of_status(reason.status_code, reason.message)
