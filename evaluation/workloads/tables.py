"""Length tables out of CSV and JSONL files, plain or gzipped: one reader, told the columns.

Rows without a prompt or without an answer (failed requests, in some traces) are left out.
"""

import csv
import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BufferedIOBase
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from evaluation.workloads.lengths import LengthTable
from pipeline.errors import UsageError

_UNITS = {"s": "seconds", "ms": "milliseconds", "date": "a date"}

Cells = Mapping[str, object]
"""One row of a file: column → what stands there."""


@dataclass(frozen=True, slots=True)
class Columns:
    """What a file calls its columns."""

    prompt: tuple[str, ...] = ("prompt_tokens",)
    """Added up: a conversation's earlier turns may stand in a column of their own."""
    response: str = "response_tokens"
    at: str | None = None
    at_unit: Literal["s", "ms", "date"] = "s"
    only: tuple[str, str] | None = None
    """A column and the value that a row must have there."""


def read_table(path: Path, columns: Columns) -> LengthTable:
    """The lengths in a .csv or .jsonl file (or these with .gz); in order of time, where rows have
    one. Raises UsageError naming file, line and column."""
    read_cells = _jsonl_cells if ".jsonl" in path.suffixes else _csv_cells
    rows: list[tuple[float, int, int]] = []
    with opened(path) as file:
        for number, cells in read_cells(path, file):
            try:
                if columns.only is not None and _cell(cells, columns.only[0]) != columns.only[1]:
                    continue
                prompt = sum(_tokens(cells, name) for name in columns.prompt)
                response = _tokens(cells, columns.response)
                at_ms = 0.0 if columns.at is None else _ms(cells, columns.at, columns.at_unit)
            except ValueError as error:
                raise UsageError(f"{path}, line {number}: {error}") from error
            if prompt > 0 and response > 0:
                rows.append((at_ms, prompt, response))
    if not rows:
        raise UsageError(f"{path}: no rows with a prompt and an answer")
    if columns.at is not None:
        rows.sort(key=lambda row: row[0])
    at, prompts, responses = zip(*rows, strict=True)
    return LengthTable(
        name=path.name,
        prompt_tokens=np.array(prompts, dtype=np.int64),
        response_tokens=np.array(responses, dtype=np.int64),
        at_ms=None if columns.at is None else np.array(at) - at[0],
    )


@contextmanager
def opened(path: Path) -> Iterator[BufferedIOBase]:
    """The file's bytes, unpacked where its name ends in .gz. Raises UsageError naming it."""
    try:
        with path.open("rb") as plain:
            yield gzip.GzipFile(fileobj=plain) if path.suffix == ".gz" else plain
    except (OSError, EOFError, zlib.error) as error:  # not there, not gzip, or cut short
        raise UsageError(f"{path}: {error}") from error


def _csv_cells(path: Path, file: Iterable[bytes]) -> Iterator[tuple[int, Cells]]:
    rows = csv.DictReader(line.decode("utf-8-sig", "replace") for line in file)
    try:
        for cells in rows:
            yield rows.line_num, cells
    except csv.Error as error:
        raise UsageError(f"{path}, line {rows.line_num}: {error}") from error


def _jsonl_cells(path: Path, file: Iterable[bytes]) -> Iterator[tuple[int, Cells]]:
    decode = msgspec.json.Decoder(dict[str, object]).decode
    for number, line in enumerate(file, 1):
        try:
            if line.strip():
                yield number, decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}, line {number}: {error}") from error


def _cell(cells: Cells, name: str) -> str:
    if name not in cells:
        raise ValueError(f"no column {name!r}; there are {', '.join(map(str, cells))}")
    return str(cells[name])


def _tokens(cells: Cells, name: str) -> int:
    text = _cell(cells, name)
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} {text!r}: not a whole number") from None


def _ms(cells: Cells, name: str, unit: Literal["s", "ms", "date"]) -> float:
    text = _cell(cells, name)
    try:
        if unit == "date":
            date = datetime.fromisoformat(_microseconds(text))
            return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() * 1_000
        return float(text) * (1_000 if unit == "s" else 1)
    except ValueError:
        raise ValueError(f"{name} {text!r}: not {_UNITS[unit]}") from None


def _microseconds(text: str) -> str:
    """Azure's dates have seven digits after the point, and Python's at most six."""
    whole, point, fraction = text.partition(".")
    return f"{whole}{point}{fraction[:6]}"
