"""Prompts with the lengths of their answers, from JSONL files."""

import gzip
import hashlib
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from pipeline.errors import UsageError
from tagger.conversation import Conversation


class Row(msgspec.Struct, frozen=True):
    """One prompt and how many tokens its answer had."""

    prompt: str
    response_tokens: Annotated[int, msgspec.Meta(ge=0)]
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    first_turn: bool = True
    turn: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Messages before this prompt; with the next two, None where the file does not tell."""
    context_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    prev_response_tokens: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    """-1 where there was no answer before."""
    conv: int | str | None = None
    """Which conversation it is of: one conversation is never split."""

    @property
    def conversation(self) -> Conversation | None:
        if self.turn is None or self.context_tokens is None or self.prev_response_tokens is None:
            return None
        return Conversation(self.turn, self.context_tokens, max(0, self.prev_response_tokens))


def split(rows: Sequence[Row], share: float) -> tuple[list[Row], list[Row]]:
    """The rows in two, about `share` of them in the second; no conversation is in both.

    By a hash of the conversation, or of the prompt where the file names none: the same rows are
    always split alike.
    """
    kept: list[Row] = []
    held_out: list[Row] = []
    for row in rows:
        name = row.prompt if row.conv is None else str(row.conv)
        drawn = int.from_bytes(hashlib.sha256(name.encode("utf-8", "replace")).digest()[:4], "big")
        (held_out if drawn < share * 2**32 else kept).append(row)
    return kept, held_out


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """As JSONL, after what the file holds already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    encode = msgspec.json.Encoder().encode
    with path.open("ab") as file:
        for row in rows:
            file.write(encode(row) + b"\n")


def read_rows(path: Path) -> list[Row]:
    """All rows of a .jsonl or .jsonl.gz file. Raises UsageError naming file, line and field."""
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    rows = list(_rows(path))
    if not rows:
        raise UsageError(f"{path}: no rows")
    return rows


def _rows(path: Path) -> Iterator[Row]:
    decode = msgspec.json.Decoder(Row).decode
    open_file = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with open_file(path, "rb") as lines:
            for line in lines:
                number += 1
                if line.strip():
                    yield decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}, line {number}: {error}") from error
    except (OSError, EOFError, zlib.error) as error:  # not gzip, or cut short
        raise UsageError(f"{path}, after line {number}: {error}") from error
