"""From a prompt to the token ids that the length model reads. Training and serving share this.

The model reads at most 128 tokens: the first 86 and the last 40 beside its two special ones, unless
it was trained with another tail. What a long prompt asks for stands at its start or its end, as
docs/length-model.md measures. Only a bounded head and tail of the text are tokenised: a prompt of a
megabyte costs what a page does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from pipeline.errors import UsageError

TOKENS_MAX = 128
TEXT_TOKENS_MAX = TOKENS_MAX - 2
TAIL_TOKENS = 40
BYTES_PER_UNKNOWN_TOKEN = 3
"""A word outside the vocabulary is one token here and many there: a base64 line, a rare script."""
CHARS_READ_MAX = 4_096
"""Of each end of a prompt: far more than 126 tokens need, and all of almost every prompt."""

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tokens:
    """One prompt as the model reads it."""

    ids: list[int]
    """At most TOKENS_MAX, special ones included."""
    counted: int
    """Tokens of the whole prompt by this tokenizer, estimated where the middle was not read."""


class PromptTokenizer:
    """The model's own tokenizer, from its `tokenizer.json`. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, tail_tokens: int = TAIL_TOKENS) -> None:
        self._tokenizer = tokenizer
        self._tail_tokens = tail_tokens
        self._head_tokens = TEXT_TOKENS_MAX - tail_tokens
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._unknown = _special(tokenizer, "[UNK]", "<unk>")
        self._first = _special(tokenizer, "[CLS]", "<s>")
        self._last = _special(tokenizer, "[SEP]", "</s>")
        self.pad = _special(tokenizer, "[PAD]", "<pad>")

    @classmethod
    def load(cls, path: Path, tail_tokens: int = TAIL_TOKENS) -> "PromptTokenizer":
        return cls(Tokenizer.from_file(str(path)), tail_tokens)

    def tokens(self, prompt: str) -> Tokens:
        """Ids and count of one prompt, whatever characters it has."""
        prompt = prompt.encode("utf-8", "replace").decode()  # lone surrogates have no encoding
        if len(prompt) <= 2 * CHARS_READ_MAX:
            ids, counted = self._read(prompt)
            return Tokens(self._framed(ids[: self._head_tokens], ids[self._head_tokens :]), counted)
        head, of_head = self._read(prompt[:CHARS_READ_MAX])
        tail, of_tail = self._read(prompt[-CHARS_READ_MAX:])
        counted = round((of_head + of_tail) * len(prompt) / (2 * CHARS_READ_MAX))
        return Tokens(self._framed(head[: self._head_tokens], tail), counted)

    def _read(self, text: str) -> tuple[list[int], int]:
        """Ids of all of `text`, and how many tokens to count for it."""
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        ids: list[int] = encoded.ids
        counted = len(ids)
        if self._unknown in ids:
            for number, (start, end) in zip(ids, encoded.offsets, strict=True):
                if number == self._unknown:
                    counted += len(text[start:end].encode()) // BYTES_PER_UNKNOWN_TOKEN
        return ids, counted

    def _framed(self, head: list[int], rest: list[int]) -> list[int]:
        tail = rest[-self._tail_tokens :] if self._tail_tokens else []
        return [self._first, *head, *tail, self._last]


def _special(tokenizer: Tokenizer, *names: str) -> int:
    """Id of the first of these tokens that the vocabulary has: BERT's name or RoBERTa's."""
    for name in names:
        found: int | None = tokenizer.token_to_id(name)
        if found is not None:
            return found
    raise UsageError(f"tokenizer.json has none of {', '.join(names)}")


def batch(rows: Sequence[Sequence[int]], pad: int) -> tuple[Ids, Ids]:
    """Ids and attention mask, both [rows, longest row]."""
    length = max(len(row) for row in rows)
    ids = np.full((len(rows), length), pad, dtype=np.int64)
    mask = np.zeros((len(rows), length), dtype=np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = 1
    return ids, mask
