"""ShareGPT's own JSON as training rows."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UsageError
from tagger.sources import read_data


def piece(name: str, *messages: tuple[str, str]) -> dict[str, Any]:
    return {
        "id": name,
        "conversations": [{"from": writer, "value": text} for writer, text in messages],
    }


def words(text: str) -> int:
    return max(1, len(text.split()))


CONVERSATION = (
    ("human", "a b c d"),
    ("gpt", "one two three four five"),
    ("human", "e f g h i"),
    ("gpt", "six seven eight nine"),
)


def test_every_turn_is_a_row_with_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    later = piece("x_4", *CONVERSATION[2:])
    path.write_text(json.dumps([piece("x_0", *CONVERSATION), later]))
    rows = read_data(path, words)
    assert [(row.prompt, row.response_tokens) for row in rows] == [
        ("a b c d", 5),
        ("e f g h i", 4),
        ("e f g h i", 4),
    ]
    assert [row.first_turn for row in rows] == [True, False, False]
    assert [row.turn for row in rows] == [0, 2, 0]
    assert [row.context_tokens for row in rows] == [0, 9, 0]
    assert [row.prev_response_tokens for row in rows] == [-1, 5, -1]
    assert {row.conv for row in rows} == {"x"}


def test_turns_of_unusual_sizes_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json.gz"
    usual = [("human", "a b c d"), ("gpt", "a b c d")]
    pieces = [
        piece("a_0", *usual),
        piece("b_0", ("human", "hi"), ("gpt", "a b c d")),
        piece("c_0", ("human", "a b c d"), ("gpt", "hi")),
        piece("d_0", ("human", "a " * 1_025), ("gpt", "a b c d")),
        piece("e_0", ("human", "a " * 1_000), ("gpt", "a " * 1_049)),
        piece("f_0", ("gpt", "a b c d"), ("human", "a b c d")),
    ]
    path.write_bytes(gzip.compress(json.dumps(pieces).encode()))
    assert [row.conv for row in read_data(path, words)] == ["a"]


def test_a_large_file_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tagger.sharegpt.READ_AT_ONCE", 7)
    path = tmp_path / "sharegpt.json"
    pieces = [piece(f"{n}_0", ("human", "ä 🦊 ] , ["), ("gpt", 'a "b" \\ c')) for n in range(9)]
    path.write_text(json.dumps(pieces, ensure_ascii=False, indent=1))
    rows = read_data(path, lambda _: 5)
    assert [row.conv for row in rows] == [str(n) for n in range(9)]
    assert rows[0].prompt == "ä 🦊 ] , ["


def test_a_file_without_turns_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([piece("a_0", ("human", "alone"))]))
    with pytest.raises(UsageError, match="no turn"):
        read_data(path, words)
