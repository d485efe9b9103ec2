"""Every experiment from its cells to its files, and what the files say."""

import csv
import io
import json
import warnings
from pathlib import Path

import pytest
from rich.console import Console

from evaluation.experiments.compare import against_table, metric_table, paired_table
from evaluation.experiments.conduct import conduct
from evaluation.experiments.contenders import CONTENDERS, FEW, OURS
from evaluation.experiments.metrics import MAIN, TTFT_MEAN
from evaluation.experiments.pairwise import pairwise_figures
from evaluation.experiments.plots import COLOURS, Curve, LinePanel, colour_of, draw
from evaluation.experiments.registry import EXPERIMENTS
from evaluation.experiments.report import Made
from evaluation.experiments.rows import Rows
from evaluation.experiments.scale import Scale
from evaluation.experiments.statistics import Interval
from evaluation.experiments.tables import Table
from evaluation.world.clones import Lived
from pipeline.policies import check_policy
from predictor.scores import check_score
from tests.evaluation.experiments.small import SCALE

COMMAND = "astrolabe evaluate it --quick"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared, so that cells that experiments share are run once here too."""
    return tmp_path_factory.mktemp("results")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_from_cells_to_files(name: str, out: Path) -> None:
    console = Console(file=io.StringIO(), width=250)
    conduct(EXPERIMENTS[name], Made(COMMAND, SCALE), out, jobs=1, fresh=False, console=console)
    folder = out / name
    with (folder / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(EXPERIMENTS[name].cells(SCALE))
    assert {row["seed"] for row in rows} == {"0", "1"}
    assert all(float(row["requests"]) == SCALE.requests for row in rows)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["command"] == COMMAND
    assert len(summary["means"]) == len(rows) / 2
    first = summary["means"][0]["e2e_mean_ms"]
    assert first["mean"] == pytest.approx(
        (float(rows[0]["e2e_mean_ms"]) + float(rows[1]["e2e_mean_ms"])) / 2
    )
    report = (folder / "report.md").read_text()
    table = (folder / "table.md").read_text()
    assert COMMAND in report and table.strip() in report and "| ---" in table
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "plot.svg").read_text()
    assert isinstance(console.file, io.StringIO)
    assert str(folder / "report.md") in console.file.getvalue()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_policies_meet_the_same_requests(name: str) -> None:
    """Cells that differ in policy only have equal workloads, seed by seed."""
    for scale in (SCALE, Scale(quick=False, seeds=(0, 1, 2, 3, 4), requests=10_000, folder="f")):
        cells = EXPERIMENTS[name].cells(scale)
        assert {cell.seed for cell in cells} == set(scale.seeds)
        settings = [(*cell.labels.items(), ("seed", cell.seed)) for cell in cells]
        assert len(set(settings)) == len(settings)  # labels tell all settings apart
        for cell in cells:
            assert cell.workload.requests == scale.requests
            check_policy(cell.cluster.policy)
            check_score(cell.cluster.score)


def test_the_sweep_and_the_capacity_are_the_same_runs() -> None:
    keys = [{cell.key() for cell in EXPERIMENTS[n].cells(SCALE)} for n in ("sweep", "capacity")]
    assert keys[0] == keys[1]


def test_every_contender_has_a_colour_of_its_own() -> None:
    labels = [contender.label for contender in CONTENDERS]
    assert len(set(labels)) == len(labels)
    assert set(labels) <= set(COLOURS)
    assert {OURS, *FEW} <= set(CONTENDERS)
    assert len(set(colour_of([*labels, "k = 3", "k = 4"]).values())) == len(labels) + 2


def rows_of(**by_contender: list[float]) -> Rows:
    return Rows(
        {
            "contender": name,
            "rate": 20.0,
            "seed": seed,
            "ttft_mean_ms": value,
            "ttft_p99_ms": value,
            "e2e_mean_ms": value,
            "preemptions": 0.0,
        }
        for name, values in by_contender.items()
        for seed, value in enumerate(values)
    )


def test_tables_show_means_and_pairs() -> None:
    rows = rows_of(ours=[1000.0, 2000.0], theirs=[2000.0, 4000.0])
    shown = metric_table(rows, TTFT_MEAN)
    assert shown.headings == ["contender", "rate 20"]
    assert shown.rows == [["ours", "1.50 ± 6.35"], ["theirs", "3.00 ± 12.71"]]
    (against,) = paired_table(rows, "ours", MAIN, "t").rows
    assert against == ["theirs", *["0.500 [0.500, 0.500]"] * 3, "+0 [+0, +0]"]
    (other,) = against_table(rows, "ours", MAIN, "t").rows
    assert other == ["theirs", *["2.000 [2.000, 2.000]"] * 3, "+0 [+0, +0]"]


def test_a_table_in_markdown_and_its_errors() -> None:
    table = Table("Title", ["who", "x | y"], [["a|b", "1"]], "A note.")
    assert table.markdown().splitlines() == [
        "**Title**",
        "",
        "| who | x | y |",
        "| --- | ---: |",
        r"| a\|b | 1 |",
        "",
        "A note.",
    ]
    with pytest.raises(ValueError, match="Title"):
        Table("Title", ["who", "x"], [["a"]])


def test_a_plot_of_one_seed_has_no_bands_and_warns_of_nothing(tmp_path: Path) -> None:
    alone = Interval(1.0, float("nan"), float("nan"))
    panel = LinePanel("t", "x", "y", [Curve("a", [1.0, 2.0], [alone, alone])], log=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw([panel], tmp_path / "plot")
    assert (tmp_path / "plot.svg").is_file()
    with pytest.raises(ValueError, match="nothing"):
        draw([], tmp_path / "none")


def test_the_same_plot_is_the_same_file(tmp_path: Path) -> None:
    panel = LinePanel("t", "x", "y", [Curve("a", [1.0, 2.0], [Interval(1.0, 0.5, 1.5)] * 2)])
    for name in ("one", "two"):
        draw([panel], tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def lived(job: int, instance: int, predicted_ms: float, e2e_ms: float, **more: object) -> Lived:
    return Lived(
        job=job,
        instance=instance,
        in_flight=int(str(more.get("in_flight", 0))),
        chosen=bool(more.get("chosen", False)),
        cost=predicted_ms,
        predicted_ttft_ms=0.0,
        predicted_e2e_ms=predicted_ms,
        ttft_ms=0.0,
        e2e_ms=e2e_ms,
    )


def test_pairs_are_right_where_the_lower_prediction_was_the_better_place() -> None:
    figures = pairwise_figures(
        [
            lived(1, 0, 100.0, 100.0, in_flight=3, chosen=True),
            lived(1, 1, 200.0, 300.0, in_flight=2),  # right by prediction, wrong by count
            lived(2, 0, 100.0, 105.0, in_flight=1, chosen=True),
            lived(2, 1, 200.0, 100.0, in_flight=1),  # wrong by 5 %; the counts are equal
        ]
    )
    assert figures["pairs"] == 2.0
    assert figures["right_by_prediction"] == 0.5
    assert figures["right_by_in_flight"] == 0.25
    assert figures["pairs_far"] == 1.0
    assert figures["far_right_by_prediction"] == 1.0
    assert figures["regret_ms"] == pytest.approx(2.5)
    with pytest.raises(ValueError, match="k = 2"):
        pairwise_figures([lived(1, 0, 1.0, 1.0, chosen=True)])
