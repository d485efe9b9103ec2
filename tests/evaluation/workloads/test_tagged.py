"""What the shipped length model says of prompts is kept, and only where it is still true."""

import json
from pathlib import Path

import numpy as np
import pytest

from evaluation.workloads.tagged import CACHE_VARIABLE, FILES_MAX, cache_folder, read_tagged
from pipeline.errors import UsageError
from tagger.model import LengthModel

PROMPTS = ["Why is the sky blue?", "Answer yes or no: is 7 prime?", "Write a long story."]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    return folder


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Path | None]:
    """Grows whenever the model is loaded, that is, whenever the kept estimates did not do."""
    seen: list[Path | None] = []
    load = LengthModel.load

    def counted(folder: Path | None = None) -> LengthModel:
        seen.append(folder)
        return load(folder)

    monkeypatch.setattr(LengthModel, "load", counted)
    return seen


def prompts_file(path: Path, prompts: list[str]) -> Path:
    rows = [
        {"prompt": prompt, "prompt_tokens": 7, "response_tokens": 10 + number}
        for number, prompt in enumerate(prompts)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_prompts_come_with_the_models_own_quantiles(
    tmp_path: Path, loads: list[Path | None]
) -> None:
    path = prompts_file(tmp_path / "prompts.jsonl", PROMPTS)
    model = LengthModel.load()
    table = read_tagged(path)
    assert table.estimates is not None
    assert table.estimates.source == model.name
    np.testing.assert_allclose(
        table.estimates.quantiles, [model.estimate_one(prompt) for prompt in PROMPTS]
    )
    assert table.response_tokens.tolist() == [10, 11, 12]

    del loads[:]
    again = read_tagged(path)
    assert again.estimates is not None
    assert np.array_equal(again.estimates.quantiles, table.estimates.quantiles)
    assert loads == []


def test_other_prompts_are_not_answered_from_what_was_kept(
    tmp_path: Path, loads: list[Path | None]
) -> None:
    path = prompts_file(tmp_path / "prompts.jsonl", PROMPTS)
    first = read_tagged(path)
    second = read_tagged(prompts_file(path, PROMPTS[::-1]))
    assert len(loads) == 2
    assert first.estimates is not None
    assert second.estimates is not None
    np.testing.assert_allclose(first.estimates.quantiles, second.estimates.quantiles[::-1])


def test_a_damaged_file_is_made_again(
    tmp_path: Path, cache: Path, loads: list[Path | None]
) -> None:
    path = prompts_file(tmp_path / "prompts.jsonl", PROMPTS)
    read_tagged(path)
    (kept,) = cache.glob("*.npz")
    whole = kept.read_bytes()
    for damaged in (b"", b"nonsense", whole[: len(whole) // 2]):
        kept.write_bytes(damaged)
        read_tagged(path)
        assert kept.read_bytes() == whole
    assert len(loads) == 4


def test_what_is_kept_is_bounded(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Same:
        name = "same"

        def estimate_one(self, prompt: str) -> tuple[float, float, float]:
            return 1.0, 1.0, 1.0

    monkeypatch.setattr(LengthModel, "load", Same)
    for number in range(FILES_MAX + 3):
        read_tagged(prompts_file(tmp_path / "prompts.jsonl", [f"number {number}"]))
    assert len(list(cache.iterdir())) == FILES_MAX


def test_rows_without_a_prompts_count_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a", "response_tokens": 3}\n')
    with pytest.raises(UsageError, match=r"prompts\.jsonl: every row needs prompt_tokens"):
        read_tagged(path)


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "under"))
    with pytest.raises(UsageError, match=CACHE_VARIABLE):
        read_tagged(prompts_file(tmp_path / "prompts.jsonl", PROMPTS[:1]))


def test_the_cache_lies_where_the_user_keeps_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "astrolabe"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "astrolabe"
