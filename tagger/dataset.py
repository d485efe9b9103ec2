"""Prompts with the lengths of their answers, from JSONL files."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from pipeline.errors import UsageError


class Row(msgspec.Struct, frozen=True):
    """One prompt and how many tokens its answer had."""

    prompt: str
    response_tokens: Annotated[int, msgspec.Meta(ge=0)]
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    first_turn: bool = True


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
