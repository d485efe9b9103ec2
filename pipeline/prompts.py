"""Prompts for load: the bundled sample, or a file of one's own, as requests."""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from pipeline.errors import UsageError
from pipeline.messages import MAX_TOKENS_LIMIT, Request

Tokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS_LIMIT)]


class PromptRow(msgspec.Struct, frozen=True):
    """One line of a prompt file. Other fields are ignored."""

    prompt: Annotated[str, msgspec.Meta(min_length=1)]
    max_tokens: Tokens | None = None
    response_tokens: Tokens | None = None
    """How long a recorded answer was."""
    first_turn: bool | None = None
    """In files of whole conversations: only first turns make sense without the rest."""


def read_prompts(path: Path | None) -> list[PromptRow]:
    """Rows of a .jsonl or .jsonl.gz file; the bundled sample for None. Raises UsageError."""
    if path is None:
        bundled = files("pipeline") / "samples" / "prompts.jsonl"
        rows = list(_parse("bundled sample", bundled.read_bytes()))
    else:
        rows = list(_parse(str(path), _bytes(path)))
    if any(row.first_turn is not None for row in rows):
        rows = [row for row in rows if row.first_turn]
    if not rows:
        raise UsageError(f"{path}: no prompts")
    return rows


def choose(rows: Sequence[PromptRow], count: int, seed: int) -> list[PromptRow]:
    """`count` rows in seeded order, none twice before all were taken."""
    rng = np.random.default_rng(seed)
    order: list[int] = []
    while len(order) < count:
        order.extend(int(index) for index in rng.permutation(len(rows)))
    return [rows[index] for index in order[:count]]


def as_request(row: PromptRow, request_id: str) -> Request:
    """A request for the row.

    With `max_tokens`, the row's recorded length is told to the simulated engine alone, as the
    natural end of its answer. Without, the recorded length becomes `max_tokens` and the engine is
    to use it up, as the paper's evaluation does.
    """
    recorded = row.response_tokens
    if row.max_tokens is None and recorded is not None:
        return Request(id=request_id, prompt=row.prompt, max_tokens=recorded, ignore_eos=True)
    metadata = None if recorded is None else {"response_tokens": str(recorded)}
    return Request(id=request_id, prompt=row.prompt, max_tokens=row.max_tokens, metadata=metadata)


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except OSError as error:
        raise UsageError(f"--file {path}: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:  # cut short, or damaged
        raise UsageError(f"--file {path}: {error}") from error


def _parse(name: str, data: bytes) -> Iterator[PromptRow]:
    decode = msgspec.json.Decoder(PromptRow).decode
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{name}, line {number}: {error}") from error
