import gzip
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.messages import Request
from pipeline.prompts import PromptRow, as_request, choose, read_prompts


def test_the_bundled_sample_is_varied_and_complete() -> None:
    rows = read_prompts(None)
    assert len(rows) >= 200
    assert len({row.prompt for row in rows}) == len(rows)
    sizes = sorted(len(row.prompt) for row in rows)
    assert sizes[0] < 20
    assert sizes[-1] > 4000
    assert all(row.max_tokens and row.response_tokens for row in rows)


def test_the_same_seed_chooses_the_same_and_another_does_not() -> None:
    rows = read_prompts(None)
    assert choose(rows, 100, 7) == choose(rows, 100, 7)
    assert choose(rows, 100, 7) != choose(rows, 100, 8)


def test_nothing_is_repeated_before_all_were_taken() -> None:
    rows = [PromptRow(prompt=str(n)) for n in range(5)]
    chosen = [row.prompt for row in choose(rows, 12, 1)]
    assert sorted(chosen[:5]) == sorted(chosen[5:10]) == ["0", "1", "2", "3", "4"]


def test_of_conversations_only_true_first_turns_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl.gz"
    lines = [
        b'{"prompt":"first","response_tokens":9,"first_turn":true}',
        b'{"prompt":"later","response_tokens":9,"first_turn":false}',
    ]
    with gzip.open(path, "wb") as file:
        file.write(b"\n".join(lines))
    assert [row.prompt for row in read_prompts(path)] == ["first"]


def test_a_recorded_length_is_told_to_the_simulated_engine_alone() -> None:
    row = PromptRow(prompt="x", max_tokens=100, response_tokens=30)
    assert as_request(row, "r") == Request(
        id="r", prompt="x", max_tokens=100, metadata={"response_tokens": "30"}
    )


def test_without_max_tokens_the_recorded_length_is_used_up() -> None:
    row = PromptRow(prompt="x", response_tokens=30)
    assert as_request(row, "r") == Request(id="r", prompt="x", max_tokens=30, ignore_eos=True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nonsense", "line 1"),
        ('{"prompt":""}', "prompt"),
        ('{"max_tokens":5}', "prompt"),
        ('{"prompt":"x","max_tokens":0}', "max_tokens"),
        ("", "no prompts"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(line)
    with pytest.raises(UsageError, match=said):
        read_prompts(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.jsonl"):
        read_prompts(tmp_path / "gone.jsonl")


@pytest.mark.parametrize("damage", ["cut short", "overwritten"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    packed = bytearray(gzip.compress(b'{"prompt":"x"}\n' * 500))
    if damage == "cut short":
        del packed[-12:]
    else:
        packed[10:14] = b"\xff" * 4
    path = tmp_path / "p.jsonl.gz"
    path.write_bytes(packed)
    with pytest.raises(UsageError, match=r"p\.jsonl\.gz"):
        read_prompts(path)


def test_a_file_that_is_not_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl.gz"
    path.write_bytes(b"plain")
    with pytest.raises(UsageError, match=r"p\.jsonl\.gz"):
        read_prompts(path)
