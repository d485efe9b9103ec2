import gzip
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from tagger.conversation import Conversation
from tagger.dataset import Row, read_rows, split, write_rows


def test_rows_are_read_plain_and_compressed(tmp_path: Path) -> None:
    text = b'{"prompt":"a","response_tokens":3,"first_turn":false,"extra":1}\n\n'
    (tmp_path / "a.jsonl").write_bytes(text)
    with gzip.open(tmp_path / "a.jsonl.gz", "wb") as packed:
        packed.write(text)
    expected = [Row(prompt="a", response_tokens=3, first_turn=False)]
    assert read_rows(tmp_path / "a.jsonl") == read_rows(tmp_path / "a.jsonl.gz") == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nonsense", "line 2"),
        ('{"prompt":"a"}', "response_tokens"),
        ('{"prompt":"a","response_tokens":-1}', "response_tokens"),
        ('{"prompt":5,"response_tokens":1}', "prompt"),
    ],
)
def test_a_wrong_row_names_file_line_and_field(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"prompt":"a","response_tokens":3}}\n{line}\n')
    with pytest.raises(UsageError, match=said) as caught:
        read_rows(path)
    assert "a.jsonl, line 2" in str(caught.value)


def test_a_file_that_is_cut_short_is_named(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"prompt":"a","response_tokens":3}\n' * 1000)
    (tmp_path / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "plain.jsonl.gz").write_bytes(b'{"prompt":"a","response_tokens":3}\n')
    with pytest.raises(UsageError, match=r"cut\.jsonl\.gz, after line"):
        read_rows(tmp_path / "cut.jsonl.gz")
    with pytest.raises(UsageError, match="after line 0: Not a gzipped file"):
        read_rows(tmp_path / "plain.jsonl.gz")


def test_no_file_and_no_rows_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_rows(tmp_path / "missing.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UsageError, match="no rows"):
        read_rows(tmp_path / "empty.jsonl")


def test_no_conversation_is_on_both_sides_of_a_split() -> None:
    rows = [
        Row(prompt=f"{conversation}.{turn}", response_tokens=1, conv=conversation)
        for conversation in range(400)
        for turn in range(3)
    ]
    kept, held_out = split(rows, 0.25)
    assert len(kept) + len(held_out) == len(rows)
    assert not {row.conv for row in kept} & {row.conv for row in held_out}
    assert 200 < len(held_out) < 400
    assert split(rows[::-1], 0.25)[1] == held_out[::-1], "whatever the order"


def test_rows_without_a_conversation_are_split_by_their_prompt() -> None:
    rows = [Row(prompt=str(number % 50), response_tokens=1) for number in range(500)]
    kept, held_out = split(rows, 0.5)
    assert not {row.prompt for row in kept} & {row.prompt for row in held_out}


def test_what_a_row_tells_of_its_conversation() -> None:
    told = Row(prompt="a", response_tokens=1, turn=2, context_tokens=9, prev_response_tokens=5)
    assert told.conversation == Conversation(2, 9, 5)
    first = Row(prompt="a", response_tokens=1, turn=0, context_tokens=0, prev_response_tokens=-1)
    assert first.conversation == Conversation(0, 0, 0)
    assert Row(prompt="a", response_tokens=1, turn=2).conversation is None


def test_what_is_written_is_read_again_and_added_to(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.jsonl"
    rows = [
        Row(prompt="a\n🦊", response_tokens=1, conv="c"),
        Row(prompt="b", response_tokens=2),
    ]
    write_rows(path, rows[:1])
    write_rows(path, rows[1:])
    assert read_rows(path) == rows
