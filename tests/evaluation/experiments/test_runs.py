"""Cells: what makes them the same, what is kept, and what one failure does to the others."""

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from evaluation.experiments import code_version as versions
from evaluation.experiments.cells import run_cell
from evaluation.experiments.kept import KeptFigures
from evaluation.experiments.rows import Rows
from evaluation.experiments.runs import CellsFailed, run_cells
from pipeline.errors import UsageError
from tests.evaluation.experiments.small import CLUSTER, cell, die

MEASURED = "decision_cpu_ms"  # CPU time: the one figure that differs between two equal runs


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def without_cpu(figures: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if name != MEASURED}


def test_the_same_seed_gives_the_same_row_and_another_does_not() -> None:
    first, again, other = run_cell(cell(0)), run_cell(cell(0)), run_cell(cell(1))
    assert without_cpu(first) == without_cpu(again)
    assert first["ttft_mean_ms"] != other["ttft_mean_ms"]


def test_a_key_is_what_changes_the_result() -> None:
    one = cell()
    assert one.key() == replace(one, labels={"called": "otherwise"}).key()
    assert one.key() == replace(one, cluster=replace(CLUSTER, seed=7)).key()
    others = [
        cell(1),
        cell(rate=4.5),
        cell(estimates="oracle"),
        replace(one, cluster=replace(CLUSTER, dispatchers=2)),
        replace(one, cluster=replace(CLUSTER, instances=CLUSTER.instances[:2])),
    ]
    assert len({one.key(), *(other.key() for other in others)}) == 6


def test_what_was_run_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*, fresh: bool = False) -> list[dict[str, str | float]]:
        kept = KeptFigures(tmp_path / "kept", fresh=fresh)
        return run_cells([cell(0), cell(1)], kept, jobs=1, title="t", console=quiet())

    first = run()
    assert run() == first  # the CPU time too: it is the same run
    monkeypatch.setattr("evaluation.experiments.runs.run_cell", lambda _: {"figure": 1.0})
    assert run() == first
    assert run(fresh=True)[0]["figure"] == 1.0
    assert run()[0]["figure"] == 1.0  # what was run afresh is kept


def test_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    kept = KeptFigures(tmp_path)
    kept.keep(cell(), {"figure": 1.0})
    assert kept.find(cell()) == {"figure": 1.0}
    (file,) = tmp_path.iterdir()
    file.write_text("{")
    assert kept.find(cell()) is None


def test_a_folder_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--out"):
        KeptFigures(tmp_path / "file" / "kept")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_cell_that_fails_is_named_and_loses_no_other(tmp_path: Path, jobs: int) -> None:
    bad = cell(1, name="nonsense")
    kept = KeptFigures(tmp_path)
    console = quiet()
    with pytest.raises(CellsFailed, match=r"t: 1 of 3 cells failed: contender=\S+ seed=1$"):
        run_cells([cell(0), bad, cell(2)], kept, jobs=jobs, title="t", console=console)
    assert "nonsense" in printed(console)
    assert kept.find(cell(0)) is not None and kept.find(cell(2)) is not None
    assert kept.find(bad) is None


def test_processes_give_the_rows_that_one_gives_in_the_order_of_the_cells(tmp_path: Path) -> None:
    cells = [cell(seed) for seed in (2, 0, 1, 0)]
    rows = [
        run_cells(cells, KeptFigures(tmp_path / str(jobs)), jobs=jobs, title="t", console=quiet())
        for jobs in (1, 2)
    ]
    assert [row["seed"] for row in rows[0]] == [2, 0, 1, 0]
    alone, together = ([{**row, MEASURED: 0.0} for row in some] for some in rows)
    assert alone == together
    assert len(list((tmp_path / "1").iterdir())) == 3  # the same cell is run once


INTERRUPTED = """
import sys
from pathlib import Path
from rich.console import Console
from evaluation.experiments.kept import KeptFigures
from evaluation.experiments.runs import run_cells
from tests.evaluation.experiments.small import cell

if __name__ == "__main__":
    cells = [cell(seed, requests=20_000) for seed in range(8)]
    kept = KeptFigures(Path(sys.argv[1]))
    run_cells(cells, kept, jobs=2, title="t", console=Console())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    """The signal is sent to the parent alone."""
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "kept")],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert "8 cells" in process.stdout.readline()
        wait_for_children(process.pid, at_least=2)
        process.send_signal(number)
        assert process.wait(timeout=30) != 0
        wait_for_children(process.pid, at_least=0)
    finally:
        process.kill()
        process.communicate()


def wait_for_children(group: int, at_least: int) -> None:
    """Until the process group has so many members beside its leader; none at all for 0."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        members = sum(_group_of(path) == group for path in Path("/proc").glob("[0-9]*/stat"))
        if members > at_least if at_least else members == 0:
            return
        time.sleep(0.05)
    raise AssertionError(f"{members} processes in the group")


def _group_of(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[2])
    except (FileNotFoundError, ProcessLookupError):
        return -1


def test_a_process_that_dies_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that the system killed for its memory."""
    assert multiprocessing.active_children() == []
    monkeypatch.setattr("evaluation.experiments.runs._attempt", die)
    with pytest.raises(CellsFailed, match="2 of 2 cells failed"):
        run_cells([cell(0), cell(1)], KeptFigures(tmp_path), jobs=2, title="t", console=quiet())


def test_the_version_follows_what_a_run_imports() -> None:
    files = {str(path.relative_to(versions.ROOT)) for path in versions.sources(versions.STARTS)}
    assert {
        "evaluation/world/cluster.py",
        "evaluation/workloads/presets.py",
        "pipeline/policies/power_of_two.py",
        "predictor/scheduler.py",
        "predictor/scores.py",
        "workers/simulated_time.py",
    } <= files
    assert not any(
        file.startswith(("pipeline/cli/", "evaluation/experiments/runs")) for file in files
    )
    assert versions.code_version() == versions.code_version()


def test_rows_answer_only_what_is_asked_rightly() -> None:
    rows = Rows(
        [
            {"contender": "a", "seed": 0, "x": 1.0},
            {"contender": "a", "seed": 1, "x": 3.0},
            {"contender": "b", "seed": 0, "x": 5.0},
        ]
    )
    assert rows.values("contender") == ["a", "b"]
    assert rows.where(contender="a").by_seed("x") == {0: 1.0, 1: 3.0}
    assert rows.where(contender="a").mean("x").mean == 2.0
    with pytest.raises(ValueError, match="several rows"):
        rows.by_seed("x")
    with pytest.raises(KeyError, match="contender"):
        rows.where(contender="c")
