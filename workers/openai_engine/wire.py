"""The OpenAI API as engines speak it: bodies that are sent, events that come, errors of all kinds.

Servers differ most in their errors: vLLM nests them, SGLang's are flat or nested, llama.cpp's have
a number for a code, TGI's are a string; and any of them may come inside a stream that began with
HTTP 200.
"""

import re
from typing import Any

import msgspec

from pipeline.errors import BadRequest, EngineFailed, Overloaded, PromptTooLong, RequestError
from pipeline.messages import FinishReason, Request
from workers.engine import EngineRequest

RETRY_AFTER_MS = 1_000
FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
}
OVERLOADED = (429, 503)
MESSAGE_CHARS_MAX = 300
_TOO_LONG = re.compile(
    r"context length|context size|maximum context|longer than|too long|exceed.*(?:context|tokens)"
    r"|input.*tokens.*(?:must be|larger)",
    re.IGNORECASE | re.DOTALL,
)
_OF_THE_SUM = re.compile(r"requested (?:token count|a total|\d+ tokens)|max_(?:new_)?tokens", re.I)


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int | None = None


class Piece(msgspec.Struct, frozen=True):
    """A choice's text: `text` of a completion, `content` of a chat's delta."""

    content: str | None = None


class Choice(msgspec.Struct, frozen=True):
    text: str | None = None
    delta: Piece | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None

    @property
    def added(self) -> str:
        return self.text or (self.delta.content if self.delta is not None else None) or ""


class Chunk(msgspec.Struct, frozen=True):
    """One event of a stream; of an error only `error` is there, or SGLang's flat form."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None
    object: str = ""
    message: str | None = None
    code: Any = None


decode_chunk = msgspec.json.Decoder(Chunk).decode


def path_of(request: Request) -> str:
    return "/v1/completions" if request.messages is None else "/v1/chat/completions"


def body_of(asked: EngineRequest, model: str, max_tokens: int, *, priority: bool) -> dict[str, Any]:
    """What is sent. Fields that the request does not set are left to the server."""
    request = asked.request
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens,
        "stream": True,
        # Counts in every event, where the server can (vLLM, SGLang); others give them at the end.
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    if request.messages is None:
        body["prompt"] = request.prompt
    else:
        body["messages"] = [{"role": m.role, "content": m.content} for m in request.messages]
    for name in ("temperature", "top_p", "stop", "seed"):
        if (value := getattr(request, name)) is not None:
            body[name] = value
    if request.ignore_eos:
        body["ignore_eos"] = True
    if priority:
        body["priority"] = asked.priority
    return body


def finish_reason(told: str) -> FinishReason:
    """Ours of a server's. Raises EngineFailed for one that is no end of an answer."""
    known = FINISH.get(told)
    if known is None:
        raise EngineFailed(f"the server ended the answer with {told!r}")
    return known


def error_of(status: int, body: bytes, retry_after: str | None = None) -> RequestError:
    """What an answer that is no success means; `status` may be one inside a stream."""
    message = _message(body) or f"HTTP {status}"
    return error_of_status(status, message, retry_after)


def error_in(chunk: Chunk) -> RequestError | None:
    """What an event inside a stream means, if it is an error."""
    if chunk.error is not None:
        return error_of_event(chunk.error)
    if chunk.object == "error":
        message = chunk.message or "an error without a message"
        return error_of_status(_status(chunk.code), message)
    return None


def error_of_event(error: object) -> RequestError:
    """What the `error` of an event means: an object, or words."""
    nested = error if isinstance(error, dict) else {"message": error}
    message = nested.get("message") or "an error without a message"
    return error_of_status(_status(nested.get("code")), str(message))


def room_told(message: str) -> int | None:
    """The prompt's tokens where a refusal of prompt + max_tokens names them (SGLang does)."""
    found = re.search(r"(\d+) tokens (?:from|in) the input", message)
    return int(found.group(1)) if found else None


def is_of_the_sum(error: RequestError) -> bool:
    """Whether a shorter answer would have been accepted."""
    return isinstance(error, PromptTooLong) and bool(_OF_THE_SUM.search(error.message))


def _status(code: object) -> int:
    """Of an error inside a stream; 500 where it tells no number."""
    try:
        status = int(str(code))
    except ValueError:
        return 500
    return status if 400 <= status <= 599 else 500


def error_of_status(status: int, message: str, retry_after: str | None = None) -> RequestError:
    """By HTTP status and words; only the words say that a prompt was too long."""
    message = " ".join(message.split())[:MESSAGE_CHARS_MAX]
    if status in OVERLOADED:
        return Overloaded(f"the server is full: {message}", retry_after_ms=_ms(retry_after))
    if status == 413 or (status in (400, 422) and _TOO_LONG.search(message)):
        return PromptTooLong(message, field="prompt")
    if status in (400, 422):
        return BadRequest(f"the server refused the request: {message}")
    return EngineFailed(f"HTTP {status}: {message}")


def _ms(retry_after: str | None) -> int:
    try:
        return round(float(retry_after or "") * 1000) or RETRY_AFTER_MS
    except ValueError:
        return RETRY_AFTER_MS


def _message(body: bytes) -> str | None:
    """The words in an error body of whatever form."""
    try:
        told: Any = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body.decode("utf-8", "replace").strip() or None
    for name in ("error", "message", "detail"):
        while isinstance(told, dict) and name in told:
            told = told[name]
    return told if isinstance(told, str) else None
