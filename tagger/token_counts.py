"""How many tokens the served model makes of a prompt: exactly where its tokenizer is known."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tokenizers import Tokenizer

from pipeline.errors import UsageError
from pipeline.estimates import Question
from pipeline.subjects import DEFAULT_MODEL, model_slug

CHARS_READ_MAX = 32_768
"""Of each end of a prompt. The middle of a longer one is taken to be like them: a megabyte would
take a core a second."""

Count = Callable[[str], int]


class TokenCounts:
    """Counts on a thread of its own. `otherwise` counts for models whose tokenizer is not known;
    it is a length model's or a rule of thumb, bounded in time whatever the text."""

    def __init__(self, tokenizers: Mapping[str, Tokenizer], otherwise: Count) -> None:
        self._tokenizers = tokenizers
        self._otherwise = otherwise
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="count")

    def exact(self, model: str) -> bool:
        """Whether the served model's own tokenizer counts."""
        return model in self._tokenizers

    async def count(self, question: Question) -> int:
        """At least 1."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._count, question)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _count(self, question: Question) -> int:
        tokenizer = self._tokenizers.get(question.model)
        if tokenizer is None:
            return self._otherwise(question.prompt)
        return _counted(tokenizer, question.prompt)


def _counted(tokenizer: Tokenizer, text: str) -> int:
    text = text.encode("utf-8", "replace").decode()  # lone surrogates have no encoding
    if len(text) <= 2 * CHARS_READ_MAX:
        return max(1, len(tokenizer.encode(text).ids))
    ends = text[:CHARS_READ_MAX], text[-CHARS_READ_MAX:]
    counted = sum(len(tokenizer.encode(end, add_special_tokens=False).ids) for end in ends)
    return max(1, round(counted * len(text) / (2 * CHARS_READ_MAX)))


def read_tokenizers(arguments: Sequence[str]) -> dict[str, Tokenizer]:
    """By model slug, of `MODEL=PATH`, or `PATH` for the stack's default model; a path is a
    tokenizer.json or its folder. Raises UsageError."""
    found = {}
    for argument in arguments:
        model, named, path = argument.rpartition("=")
        found[model_slug(model) if named else DEFAULT_MODEL] = load_tokenizer(Path(path))
    return found


def load_tokenizer(path: Path) -> Tokenizer:
    """Of a tokenizer.json or its folder, to count whole texts with. Raises UsageError."""
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise UsageError(f"tokenizer {file}: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
