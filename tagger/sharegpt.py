"""The public ShareGPT file (ShareGPT_V3_unfiltered_cleaned_split.json): conversations in pieces.

Its records are pieces of conversations, `<conversation>_<offset>`. Only a piece at offset 0 that
starts with a person's message and goes on with the model's has a true first turn. To take every
piece's first two messages, as much benchmark code does, makes prompts of answers.

The file is read piece by piece: it has 670 MB, and a well-known copy of it is cut off in the middle
of a string, before which everything is good.
"""

import codecs
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec
import structlog

from pipeline.errors import UsageError
from tagger.dataset import Row

log = structlog.get_logger()

PERSON = ("human", "user")
ASSISTANT = ("gpt", "chatgpt")
READ_AT_ONCE = 1 << 20
PIECE_CHARS_MAX = 64 << 20

# What benchmarks of serving usually keep.
SIDE_TOKENS_MIN = 4
PROMPT_TOKENS_MAX = 1_024
TURN_TOKENS_MAX = 2_048

Count = Callable[[str], int]
"""A text → its tokens, at least 1."""


class Readable(Protocol):
    """An open file."""

    def read(self, size: int, /) -> bytes: ...


class Message(msgspec.Struct, frozen=True):
    """One message; the file names its writer `from`."""

    writer: str = msgspec.field(name="from")
    value: str


class Piece(msgspec.Struct, frozen=True):
    """One record of the file."""

    conversations: list[Message]
    id: str

    @property
    def opens(self) -> bool:
        """Whether the conversation starts with this piece."""
        return self.id.rpartition("_")[2] == "0"

    @property
    def conversation(self) -> str:
        """Which conversation it is a piece of."""
        return self.id.rpartition("_")[0]

    def turns(self) -> Iterator[tuple[int, str, str]]:
        """A person's message with the model's answer: place in the piece, prompt, answer."""
        for place, (asked, answer) in enumerate(
            zip(self.conversations, self.conversations[1:], strict=False)
        ):
            if asked.writer in PERSON and answer.writer in ASSISTANT:
                yield place, asked.value, answer.value


def pieces(file: Readable, name: str) -> Iterator[Piece]:
    """The records of an open file, as far as it is whole; where it is cut off a warning says so.

    Raises UsageError naming the file where it is no such list at all.
    """
    decoder = json.JSONDecoder()
    decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
    text, found, begun, ended = "", 0, False, False
    while not ended:
        data = file.read(READ_AT_ONCE)
        ended = not data
        text += decode(data, final=ended)
        text = text.lstrip()
        if not begun and text:
            if text[0] != "[":
                raise UsageError(f"{name}: is not a list of conversations")
            begun, text = True, text[1:]
        while True:
            text = text.lstrip(", \t\r\n")
            if text[:1] in ("", "]"):
                break
            try:
                value, end = decoder.raw_decode(text)
            except json.JSONDecodeError as error:
                if len(text) > PIECE_CHARS_MAX:
                    raise UsageError(f"{name}, after {found} records: {error}") from error
                break  # the rest of it is still to be read
            yield _piece(value, name, found)
            found += 1
            text = text[end:]
    if text[:1] != "]":
        if not found:
            raise UsageError(f"{name}: no whole record in it")
        log.warning("file_cut_off", file=name, records=found)


def _piece(value: Any, name: str, number: int) -> Piece:
    try:
        return msgspec.convert(value, Piece)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name}, record {number}: {error}") from error


def read_turns(path: Path, file: Readable, count: Count) -> list[Row]:
    """All turns of the usual sizes, with what came before each. Raises UsageError."""
    rows = []
    for piece in pieces(file, str(path)):
        counts = [count(message.value) for message in piece.conversations]
        for place, prompt, answer in piece.turns():
            tokens, answer_tokens = counts[place], counts[place + 1]
            if min(tokens, answer_tokens) < SIDE_TOKENS_MIN or tokens > PROMPT_TOKENS_MAX:
                continue
            if tokens + answer_tokens > TURN_TOKENS_MAX or not answer:
                continue
            before = place > 0 and piece.conversations[place - 1].writer in ASSISTANT
            rows.append(
                Row(
                    prompt=prompt,
                    prompt_tokens=tokens,
                    response_tokens=answer_tokens,
                    first_turn=piece.opens and place == 0,
                    turn=place,
                    context_tokens=sum(counts[:place]),
                    prev_response_tokens=counts[place - 1] if before else -1,
                    conv=piece.conversation,
                )
            )
    if not rows:
        raise UsageError(f"{path}: no turn of a person and an answer")
    return rows
