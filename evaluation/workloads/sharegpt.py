"""The public ShareGPT file (ShareGPT_V3_unfiltered_cleaned_split.json) as a length table.

Its records are pieces of conversations: `<conversation>_<offset>`. Only a piece at offset 0 that
starts with a person's message and goes on with the model's has a true first turn. To take every
piece's first two messages, as much benchmark code does, makes prompts of answers.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from evaluation.workloads.lengths import LengthTable
from evaluation.workloads.tables import opened
from pipeline.errors import UsageError
from pipeline.estimates import rough_prompt_tokens

PERSON = ("human", "user")
ASSISTANT = ("gpt", "chatgpt")

Count = Callable[[str], int]
"""A text → its tokens, at least 1."""


class Message(msgspec.Struct, frozen=True):
    """One message; the file names its writer `from`."""

    writer: str = msgspec.field(name="from")
    value: str


class Piece(msgspec.Struct, frozen=True):
    """One record of the file."""

    conversations: list[Message]
    id: str

    @property
    def first_turn(self) -> tuple[str, str] | None:
        """Prompt and answer that open the conversation; None where this piece is not its start."""
        _, _, offset = self.id.rpartition("_")
        if offset != "0" or len(self.conversations) < 2:
            return None
        prompt, answer = self.conversations[:2]
        if prompt.writer not in PERSON or answer.writer not in ASSISTANT:
            return None
        return prompt.value, answer.value


def read_sharegpt(path: Path, count: Count = rough_prompt_tokens) -> LengthTable:
    """First turns of the file with a prompt and an answer, counted by `count`: by default four
    bytes a token, which is English text under common tokenizers.

    The whole file is decoded at once: the public one has 670 MB and takes about twice that of
    memory while it is read. Raises UsageError naming the file and what is wrong in it.
    """
    try:
        with opened(path) as file:
            pieces = msgspec.json.decode(file.read(), type=list[Piece])
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: {error}") from error
    turns = [turn for piece in pieces if (turn := piece.first_turn) and all(turn)]
    if not turns:
        raise UsageError(f"{path}: no conversation that starts with a person and an answer")
    return LengthTable(
        name=path.name,
        prompt_tokens=np.array([count(prompt) for prompt, _ in turns], dtype=np.int64),
        response_tokens=np.array([count(answer) for _, answer in turns], dtype=np.int64),
    )


def tokenizer_count(path: Path) -> Count:
    """Counts by the tokenizer in a `tokenizer.json`. Raises UsageError."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise UsageError(f"tokenizer {path}: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(text: str) -> int:
        return max(1, len(tokenizer.encode(text, add_special_tokens=False).ids))

    return count
