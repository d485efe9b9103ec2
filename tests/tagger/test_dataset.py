import gzip
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from tagger.dataset import Row, read_rows


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
