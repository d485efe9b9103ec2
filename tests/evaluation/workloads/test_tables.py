"""Every form in which a source's file comes is read, and what is wrong with one is named."""

import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.workloads.tables import Columns, read_table
from pipeline.errors import UsageError

BURSTGPT = Columns(("Request tokens",), "Response tokens", "Timestamp")
BURSTGPT_HEADER = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def written(path: Path, text: str) -> Path:
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["cut.csv", "cut.csv.gz"])
def test_the_plain_form(tmp_path: Path, name: str) -> None:
    path = written(
        tmp_path / name, "t,prompt_tokens,response_tokens,client\n0.5,3,4,1\n2.0,5,6,1\n"
    )
    table = read_table(path, Columns(at="t"))
    assert table.name == name
    assert table.prompt_tokens.tolist() == [3, 5]
    assert table.response_tokens.tolist() == [4, 6]
    assert table.at_ms is not None
    assert table.at_ms.tolist() == [0, 1500]
    assert read_table(path, Columns()).at_ms is None


def test_failed_requests_are_left_out_and_time_is_in_order(tmp_path: Path) -> None:
    path = written(
        tmp_path / "BurstGPT_1.csv",
        BURSTGPT_HEADER
        + "45,ChatGPT,1087,230,1317,Conversation log\n"
        + "5,ChatGPT,472,18,490,Conversation log\n"
        + "60,GPT-4,0,0,0,Conversation log\n"
        + "118,GPT-4,417,276,693,API log\n",
    )
    table = read_table(path, BURSTGPT)
    assert table.prompt_tokens.tolist() == [472, 1087, 417]
    assert table.response_tokens.tolist() == [18, 230, 276]
    assert table.at_ms is not None
    assert table.at_ms.tolist() == [0, 40_000, 113_000]


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose clocks go back from 3:00 to 2:00 on 29 October 2023."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_dates_are_read_whatever_the_time_zone_here(berlin: None, tmp_path: Path) -> None:
    """Azure's public trace: seven digits of a second, and no zone."""
    path = written(
        tmp_path / "AzureLLMInferenceTrace_conv.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-10-29 02:59:59.9799600,4808,10\n"
        "2023-10-29 03:00:00.0319600,3180,8\n",
    )
    columns = Columns(("ContextTokens",), "GeneratedTokens", "TIMESTAMP", "date")
    table = read_table(path, columns)
    assert table.at_ms is not None
    assert table.at_ms.tolist() == pytest.approx([0, 52], abs=0.01)


def test_json_lines(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 1000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]},
        {"timestamp": 4000, "input_length": 7322, "output_length": 490, "hash_ids": []},
    ]
    path = written(tmp_path / "trace.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    table = read_table(path, Columns(("input_length",), "output_length", "timestamp", "ms"))
    assert table.prompt_tokens.tolist() == [6758, 7322]
    assert table.response_tokens.tolist() == [500, 490]
    assert table.at_ms is not None
    assert table.at_ms.tolist() == [0, 3000]


def test_columns_are_added_up_and_rows_are_picked(tmp_path: Path) -> None:
    path = written(
        tmp_path / "chat.csv",
        "prompt_tokens,response_tokens,first_turn,context_tokens\n34,244,1,0\n36,319,0,278\n",
    )
    whole = read_table(path, Columns(prompt=("context_tokens", "prompt_tokens")))
    assert whole.prompt_tokens.tolist() == [34, 314]
    first = read_table(path, Columns(only=("first_turn", "1")))
    assert first.response_tokens.tolist() == [244]


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 9999), st.integers(0, 9999), st.floats(0, 1e6)),
        min_size=1,
        max_size=30,
    )
)
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, float]]
) -> None:
    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    lines = [f"{at!r},{prompt},{response}" for prompt, response, at in rows]
    path.write_text("\n".join(["t,prompt_tokens,response_tokens", *lines]))
    kept = sorted((row for row in rows if row[0] and row[1]), key=lambda row: row[2])
    if not kept:
        with pytest.raises(UsageError, match="no rows"):
            read_table(path, Columns(at="t"))
        return
    table = read_table(path, Columns(at="t"))
    assert table.prompt_tokens.tolist() == [row[0] for row in kept]
    assert table.response_tokens.tolist() == [row[1] for row in kept]
    assert table.at_ms is not None
    assert table.at_ms.tolist() == pytest.approx([1000 * (row[2] - kept[0][2]) for row in kept])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "a.csv",
            "prompt_tokens,t\n1,2\n",
            "line 2: no column 'response_tokens'; there are prompt",
        ),
        ("a.csv", "prompt_tokens,response_tokens\n1,2\n1,x\n", "line 3: response_tokens 'x'"),
        ("a.csv", "prompt_tokens,response_tokens\n1\n", "line 2: response_tokens 'None'"),
        ("a.csv", "prompt_tokens,response_tokens\n1.5,2\n", "prompt_tokens '1.5': not a whole"),
        ("a.csv", "prompt_tokens,response_tokens\n", "no rows"),
        ("a.csv", "", "no rows"),
        ("a.jsonl", '{"prompt_tokens": 1, "response_tokens": 2}\n{', "line 2: "),
        ("a.jsonl", '{"prompt_tokens": 1}\n', "line 1: no column 'response_tokens'"),
        ("a.jsonl", "[1]\n", "line 1: "),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    path = written(tmp_path / name, text)
    with pytest.raises(UsageError) as caught:
        read_table(path, Columns())
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


def test_a_wrong_time_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "t,prompt_tokens,response_tokens\nnoon,1,2\n")
    with pytest.raises(UsageError, match="line 2: t 'noon': not seconds"):
        read_table(path, Columns(at="t"))
    with pytest.raises(UsageError, match="line 2: t 'noon': not a date"):
        read_table(path, Columns(at="t", at_unit="date"))


def test_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(b"prompt_tokens,response_tokens\n" + b"1,2\n" * 10_000)
    (tmp_path / "cut.csv.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "plain.csv.gz").write_bytes(b"prompt_tokens,response_tokens\n1,2\n")
    for name in ("cut.csv.gz", "plain.csv.gz", "missing.csv"):
        with pytest.raises(UsageError, match=name):
            read_table(tmp_path / name, Columns())
