"""`astrolabe evaluate` as a person meets it."""

import importlib.util
import json
from pathlib import Path

import pytest

from evaluation.experiments.base import Experiment
from evaluation.experiments.contenders import OURS, Contender, parse_contenders
from evaluation.experiments.registry import EXPERIMENTS
from evaluation.experiments.runs import CellsFailed
from pipeline.cli import main
from pipeline.cli.evaluate import parse_rates
from pipeline.errors import UsageError

WRONG = [
    (["nonsense"], "experiment nonsense: choose from calibrate, capacity, sweep"),
    ([], "experiment"),
    (["sweep", "--seeds", "0"], "--seeds"),
    (["sweep", "--requests", "1"], "--requests"),
    (["sweep", "--jobs", "0"], "--jobs"),
    (["sweep", "--rates", "fast"], "--rates fast"),
    (["sweep", "--rates", "28,-1"], "--rates 28,-1"),
    (["sweep", "--rates", "28,28"], "--rates 28,28"),
    (["sweep", "--policies", "best"], "--policy best"),
    (["sweep", "--policies", "power_of_two/luck"], "--score luck"),
    (["noise", "--policies", "llumnix"], "--policies llumnix: only for capacity, sweep"),
    (["sweep", "--data", "no/such/folder"], "no/such/folder"),
]


@pytest.mark.parametrize(("arguments", "named"), WRONG, ids=lambda value: " ".join(value))
def test_a_wrong_use_is_one_line_that_names_it(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", *arguments]) == 2
    said = capsys.readouterr().err
    assert named in said
    assert said.startswith("astrolabe: ")


def test_help_teaches_and_the_list_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--help"]) == 0
    assert "astrolabe evaluate sweep --quick" in capsys.readouterr().out
    assert main(["evaluate", "list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == [*EXPERIMENTS, "engine"]


def test_what_is_missing_is_told_with_its_cure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert main(["evaluate", "sweep"]) == 2
    assert "pip install 'astrolabe[evaluation]'" in capsys.readouterr().err


def test_a_run_leaves_a_report_with_the_command_that_repeats_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ASTROLABE_DATA", raising=False)
    options = ["--quick", "--seeds", "2", "--requests", "10", "--rates", "8"]
    arguments = ["evaluate", "noise", *options, "--jobs", "1", "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert "report: " in capsys.readouterr().out
    summary = json.loads((tmp_path / "noise" / "summary.json").read_text())
    assert summary["command"] == f"astrolabe evaluate noise {' '.join(options)}"
    assert summary["workload"] == "synthetic"


def test_all_goes_on_after_a_failure_and_tells_it_in_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    conducted: list[str] = []

    def conduct(experiment: Experiment, *_: object, **__: object) -> None:
        conducted.append(experiment.name)
        if experiment.name == "sweep":
            raise CellsFailed("sweep: 1 of 9 cells failed: it")

    monkeypatch.setattr("evaluation.experiments.conduct.conduct", conduct)
    assert main(["evaluate", "all", "--out", str(tmp_path)]) == 2
    assert conducted == [*EXPERIMENTS]
    assert capsys.readouterr().err == "astrolabe: sweep: 1 of 9 cells failed: it\n"


def test_policies_are_parsed_with_their_scores() -> None:
    parsed = parse_contenders("least_outstanding:2,power_of_two/preemption_averse:500")
    assert [contender.label for contender in parsed] == [
        "least_outstanding:2",
        "power_of_two/preemption_averse:500",
        OURS.label,
    ]
    assert parse_contenders(f"{OURS.label},random") == (OURS, Contender("random"))


def test_rates_are_numbers_with_commas() -> None:
    assert parse_rates("28,30.5") == (28.0, 30.5)
    with pytest.raises(UsageError, match="each above 0"):
        parse_rates("0")


def test_without_the_repository_the_real_engine_is_told_to_be_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # noqa: ARG005
    assert main(["evaluate", "engine"]) == 2
    assert "checkout" in capsys.readouterr().err
