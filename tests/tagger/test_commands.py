"""What a person is told when something is missing."""

from pathlib import Path

import pytest

from pipeline.cli import length_model as commands
from pipeline.errors import UsageError
from tagger.starts import checked_base


def test_a_missing_package_names_its_extra() -> None:
    with pytest.raises(UsageError, match=r"no_such_package missing: .*astrolabe\[train\]"):
        commands._need("json", "no_such_package")


def test_a_base_is_a_folder_and_nothing_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"config\.json is missing"):
        checked_base(Path("roberta-base"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"tokenizer\.json is missing"):
        checked_base(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert checked_base(tmp_path) == tmp_path


def test_the_packaged_model_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, report = tmp_path / "a.jsonl", tmp_path / "reports" / "a.json"
    data.write_text(
        '{"prompt":"hi","response_tokens":9}\n'
        '{"prompt":"Write a long essay about bees.","response_tokens":700}\n'
    )
    commands.evaluate(data, json=report)
    assert '"spearman": 1.0' in report.read_text()
    assert "Spearman" in capsys.readouterr().out


def test_data_come_from_a_file_or_from_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "TRAINING", ())
    with pytest.raises(UsageError, match="either --data FILE or --from-results"):
        commands.train()
    with pytest.raises(UsageError, match="either --data FILE or --from-results"):
        commands.train(tmp_path / "a.jsonl", from_results=True)


def test_a_file_of_an_unknown_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a\.csv: neither \.jsonl nor"):
        commands.evaluate(tmp_path / "a.csv")
