"""Run an experiment: its cells, what they show, the files, and the tables on screen."""

from pathlib import Path

from rich.console import Console

from evaluation.experiments.base import Experiment
from evaluation.experiments.kept import KeptFigures
from evaluation.experiments.report import Made, write_report
from evaluation.experiments.rows import Rows
from evaluation.experiments.runs import run_cells

KEPT = ".cells"
"""Folder beside the reports, with figures of single runs."""


def conduct(
    experiment: Experiment, made: Made, out: Path, *, jobs: int, fresh: bool, console: Console
) -> None:
    """Into `out`/<name>. Raises UsageError, and CellsFailed where a run went wrong."""
    kept = KeptFigures(out / KEPT, fresh=fresh)
    cells = experiment.cells(made.scale)
    rows = run_cells(cells, kept, jobs=jobs, title=experiment.name, console=console)
    findings = experiment.findings(Rows(rows), made.scale)
    folder = out / experiment.name
    write_report(folder, experiment, rows, findings, made)
    for paragraph in findings.paragraphs:
        console.print(paragraph, highlight=False)
    for table in findings.tables:
        console.print(table.rich())
    console.print(f"report: {folder / 'report.md'}", highlight=False)
