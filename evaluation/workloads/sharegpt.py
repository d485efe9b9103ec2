"""The public ShareGPT file as a length table: true first turns (tagger/sharegpt.py)."""

from pathlib import Path

import numpy as np

from evaluation.workloads.lengths import LengthTable
from evaluation.workloads.tables import opened
from pipeline.errors import UsageError
from pipeline.estimates import rough_prompt_tokens
from tagger.sharegpt import Count, Piece, pieces
from tagger.token_counts import load_tokenizer


def read_sharegpt(path: Path, count: Count = rough_prompt_tokens) -> LengthTable:
    """First turns of the file with a prompt and an answer, counted by `count`: by default four
    bytes a token, which is English text under common tokenizers.

    Raises UsageError naming the file and what is wrong in it.
    """
    with opened(path) as file:
        turns = [turn for piece in pieces(file, str(path)) if (turn := _first(piece))]
    if not turns:
        raise UsageError(f"{path}: no conversation that starts with a person and an answer")
    return LengthTable(
        name=path.name,
        prompt_tokens=np.array([count(prompt) for prompt, _ in turns], dtype=np.int64),
        response_tokens=np.array([count(answer) for _, answer in turns], dtype=np.int64),
    )


def _first(piece: Piece) -> tuple[str, str] | None:
    """Prompt and answer that open the conversation; None where this piece is not its start."""
    if not piece.opens:
        return None
    for place, prompt, answer in piece.turns():
        return (prompt, answer) if place == 0 and prompt and answer else None
    return None


def tokenizer_count(path: Path) -> Count:
    """Counts by the tokenizer in a `tokenizer.json`. Raises UsageError."""
    tokenizer = load_tokenizer(path)

    def count(text: str) -> int:
        return max(1, len(tokenizer.encode(text, add_special_tokens=False).ids))

    return count
