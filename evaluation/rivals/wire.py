"""The OpenAI chat API over HTTP, as far as routers and our load need it.

Only `POST /v1/chat/completions`: what a worker behind a router is sent. Fields that we do not know
are ignored, as engines do; a field that is wrong is answered with 400 and its name.
"""

import re
import time
from collections.abc import Mapping

import msgspec

from pipeline.codec import decode
from pipeline.errors import RequestError
from pipeline.messages import ChatMessage, FinishReason, Request, Usage

DATA = b"data: "
DONE = b"data: [DONE]\n\n"
STATUS_OF_CODE: Mapping[str, int] = {
    "bad_request": 400,
    "prompt_too_long": 400,
    "duplicate_id": 409,
    "overloaded": 503,
    "engine_failed": 500,
}
"""HTTP status by our error code. 503 for a full queue is what SGLang answers."""


TOKENS_A_WORD = 0.93
"""Tokens of the served model a word or mark, by the shipped length model's card: so both our tagger
and these servers give a prompt the same prefill."""
_WORDS = re.compile(r"\w+|[^\w\s]")


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of a chat completion request."""

    messages: list[ChatMessage]
    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    """The newer name; some routers rewrite the older one to it."""
    stream: bool = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    """vLLM's and SGLang's own: generate exactly `max_tokens`."""

    @property
    def wants_usage(self) -> bool:
        """Whether the stream is to end with a chunk of token counts."""
        return self.stream_options is not None and self.stream_options.include_usage


class ChunkDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    delta: ChunkDelta
    finish_reason: str | None = None


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed answer. The last one may have usage and no choices."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    """Which server it is: routers hand the field through, so a client can tell them apart."""
    choices: list[ChunkChoice]
    usage: Usage | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    message: ChatMessage
    finish_reason: str | None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, where none was streamed."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage


class Answer:
    """Makes the bodies of one answer; they share its id, model and server."""

    def __init__(self, request_id: str, model: str, server: str) -> None:
        self._id = request_id
        self._created = int(time.time())
        self._model = model
        self._server = server

    def event(self, text: str, finish_reason: FinishReason | None, *, first: bool) -> bytes:
        """Some tokens as one server-sent event."""
        delta = ChunkDelta(role="assistant" if first else None, content=text)
        return self._chunk([ChunkChoice(delta=delta, finish_reason=finish_reason)])

    def usage_event(self, usage: Usage) -> bytes:
        """The event after the last token, for those who asked for it."""
        return self._chunk([], usage)

    def whole(self, text: str, finish_reason: FinishReason | None, usage: Usage) -> bytes:
        message = ChatMessage(role="assistant", content=text)
        choice = Choice(message=message, finish_reason=finish_reason)
        return msgspec.json.encode(
            Completion(
                id=self._id,
                created=self._created,
                model=self._model,
                system_fingerprint=self._server,
                choices=[choice],
                usage=usage,
            )
        )

    def _chunk(self, choices: list[ChunkChoice], usage: Usage | None = None) -> bytes:
        chunk = Chunk(
            id=self._id,
            created=self._created,
            model=self._model,
            system_fingerprint=self._server,
            choices=choices,
            usage=usage,
        )
        return DATA + msgspec.json.encode(chunk) + b"\n\n"


def read_chat(body: bytes, request_id: str) -> tuple[ChatRequest, Request]:
    """The body, and the request that it makes for an engine. Raises BadRequest."""
    chat = decode(body, ChatRequest)
    request = Request(
        id=request_id,
        messages=chat.messages,
        model=chat.model,
        max_tokens=(
            chat.max_tokens if chat.max_completion_tokens is None else chat.max_completion_tokens
        ),
        ignore_eos=chat.ignore_eos,
    )
    # Through our own decoder once more: it has the limits of every field.
    return chat, decode(msgspec.json.encode(request), Request)


def count_prompt_tokens(prompt: str) -> int:
    """About how many tokens the served model makes of the prompt."""
    return max(1, round(TOKENS_A_WORD * len(_WORDS.findall(prompt))))


def error_body(error: RequestError) -> bytes:
    """The API's error object."""
    told = {"message": error.message, "type": error.code, "param": error.field, "code": error.code}
    return msgspec.json.encode({"error": told})
