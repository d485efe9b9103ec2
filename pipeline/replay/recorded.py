"""One recorded request, and the file that holds many: a line of JSON each, gzipped or not."""

import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Annotated, Literal, cast

import msgspec

from pipeline.errors import UsageError
from pipeline.messages import Request

RECORDS_MAX = 1_000_000


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it was accepted once."""

    at_ms: Annotated[float, msgspec.Meta(ge=0)]
    """When it was, in ms since 1970."""
    client: str
    model: str
    """Slug of the model."""
    request: Request


def _opened(path: Path, mode: Literal["rb", "wb"]) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast("IO[bytes]", gzip.open(path, mode))
    return path.open(mode)


def write_records(path: Path, records: Iterable[Recorded]) -> int:
    """Returns how many. The prompts are people's words: treat the file as what it is."""
    written = 0
    with _opened(path, "wb") as out:
        for record in records:
            out.write(msgspec.json.encode(record) + b"\n")
            written += 1
    return written


def read_records(path: Path) -> list[Recorded]:
    """Raises UsageError that names the line and the field."""
    decoder = msgspec.json.Decoder(Recorded)
    records: list[Recorded] = []
    try:
        with _opened(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                if len(records) >= RECORDS_MAX:
                    raise UsageError(f"{path}: over {RECORDS_MAX:,} requests")
                try:
                    records.append(decoder.decode(line))
                except msgspec.DecodeError as error:
                    raise UsageError(f"{path}, line {number}: {error}") from error
    except (OSError, EOFError) as error:
        raise UsageError(f"{path}: {error}") from error
    if not records:
        raise UsageError(f"{path}: holds no request")
    return records
