"""The public ShareGPT file: true first turns only, counted by a stated rule or a tokenizer."""

import json
from pathlib import Path
from typing import Any

import pytest

from evaluation.workloads.sharegpt import read_sharegpt, tokenizer_count
from pipeline.errors import UsageError
from tagger.model import PACKAGED, TOKENIZER_FILE


def piece(name: str, *messages: tuple[str, str]) -> dict[str, Any]:
    return {
        "id": name,
        "conversations": [{"from": writer, "value": text} for writer, text in messages],
    }


def written(path: Path, *pieces: dict[str, Any]) -> Path:
    path.write_text(json.dumps(list(pieces)))
    return path


def test_only_what_opens_a_conversation_counts(tmp_path: Path) -> None:
    path = written(
        tmp_path / "sharegpt.json",
        piece("a_0", ("human", "x" * 8), ("gpt", "y" * 400), ("human", "more")),
        piece("a_37", ("human", "later" * 9), ("gpt", "turn" * 9)),
        piece("b_0", ("gpt", "an answer first"), ("human", "thanks")),
        piece("c_0", ("human", "nobody answered")),
        piece("d_0", ("user", "z" * 40), ("chatgpt", "z" * 4)),
        piece("e_0", ("human", ""), ("gpt", "to nothing")),
        piece("f_0", ("system", "be kind"), ("human", "hello"), ("gpt", "hello")),
    )
    table = read_sharegpt(path)
    # Four bytes a token.
    assert table.prompt_tokens.tolist() == [2, 10]
    assert table.response_tokens.tolist() == [100, 1]
    assert table.at_ms is None


def test_a_tokenizer_counts_better(tmp_path: Path) -> None:
    path = written(
        tmp_path / "sharegpt.json", piece("a_0", ("human", "a b c d e"), ("gpt", "yes , no"))
    )
    table = read_sharegpt(path, tokenizer_count(PACKAGED / TOKENIZER_FILE))
    assert table.prompt_tokens.tolist() == [5]
    assert table.response_tokens.tolist() == [3]


def test_a_file_that_is_cut_short_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = written(
        tmp_path / "sharegpt.json",
        piece("a_0", ("human", "x" * 8), ("gpt", "y" * 400)),
        piece("b_0", ("human", "hi"), ("gpt", "hi")),
    )
    path.write_bytes(path.read_bytes()[:-9])
    assert read_sharegpt(path).response_tokens.tolist() == [100]
    path.write_bytes(path.read_bytes()[:9])
    with pytest.raises(UsageError, match=r"sharegpt\.json: no whole record"):
        read_sharegpt(path)


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    path.write_text('[{"id": "a_0"}]')
    with pytest.raises(UsageError, match=r"record 0: .*missing required field `conversations`"):
        read_sharegpt(path)
    path.write_text('{"id": "a_0"}')
    with pytest.raises(UsageError, match="not a list"):
        read_sharegpt(path)
