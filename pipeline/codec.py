"""Encoding and decoding of messages. One decoder per type, made once.

What does not decode becomes BadRequest with the field and the limit that it broke, read off
msgspec's own message: it names the path, the expectation and never the value.
"""

import re
from typing import TypeVar

import msgspec

from pipeline.errors import BadRequest
from pipeline.messages import Id

T = TypeVar("T")

_decoders: dict[type, msgspec.json.Decoder[object]] = {}
_encode = msgspec.json.Encoder().encode
_PATH = re.compile(r" - at `\$\.?([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]+)`")
_LIMIT = re.compile(r"(?:>=|<=|<|>|length >=|length <=|matching regex) ?'?([^\s']+)'?")


class _OnlyId(msgspec.Struct):
    id: Id


def encode(message: msgspec.Struct) -> bytes:
    """JSON bytes of a message."""
    return _encode(message)


def decode(data: bytes, type_: type[T]) -> T:
    """A message of `type_`. Raises BadRequest naming the field; the text holds no value."""
    decoder = _decoders.get(type_)
    if decoder is None:
        decoder = _decoders.setdefault(type_, msgspec.json.Decoder(type_))
    try:
        return decoder.decode(data)  # type: ignore[return-value]  # the table pairs type and decoder
    except msgspec.ValidationError as error:
        raise _bad_field(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not JSON: {error}", field="body") from error
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply", field="body") from error


def readable_id(data: bytes) -> str | None:
    """The `id` of a body that is otherwise wrong, so that its sender can be told."""
    try:
        return decode(data, _OnlyId).id
    except BadRequest:
        return None


def _bad_field(text: str) -> BadRequest:
    path = _PATH.search(text)
    missing = _MISSING.search(text)
    field = path.group(1) if path else ""
    if missing:
        field = f"{field}.{missing.group(1)}" if field else missing.group(1)
    reason = text[: path.start()] if path else text
    limit = _LIMIT.search(reason)
    name = field or "body"
    return BadRequest(f"{name}: {reason}", field=name, limit=limit.group(1) if limit else None)
