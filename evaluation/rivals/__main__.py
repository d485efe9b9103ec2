"""Our pipeline against real routers, on the same simulated engines with the same arrivals.

    make rivals

Installs the routers' wheels into environments of their own (`.rivals/`), puts each router with
its policies in front of HTTP servers around our simulated engine, sends seeded arrivals, then the
same through our pipeline over a real NATS server; then breaks things on purpose. Prints tables and
writes `evaluation-results/rivals/`. docs/rivals.md says how to read them.
"""

import json
import sys
from collections.abc import Set
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from evaluation.rivals import environments, fault_table, tables
from evaluation.rivals.cases import CASES, Comparison, Contender, Row, compare, contenders
from evaluation.rivals.faults import FaultReport, break_things
from evaluation.rivals.machine import processor
from evaluation.rivals.routers import ROUTERS
from pipeline.errors import AstrolabeError
from pipeline.process import configure_logs

OUT = Path("evaluation-results") / "rivals"
SECONDS = 40.0
QUICK_SECONDS = 10.0
IDLE_REQUESTS = 40
QUICK_IDLE_REQUESTS = 10


class Part(StrEnum):
    all = "all"
    load = "load"
    faults = "faults"


def main(
    quick: Annotated[
        bool, typer.Option("--quick", help="A look: 10 s a run, one seed, default policies only.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the first run.")] = 1,
    seeds: Annotated[int, typer.Option(min=1, max=20, help="Runs of each, seeds in a row.")] = 2,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only what has this text in its name and policy; repeat it."),
    ] = None,
    part: Annotated[Part, typer.Option(help="Under load, with faults, or both.")] = Part.all,
    seconds: Annotated[
        float | None, typer.Option(min=1, max=3600, help="Of arrivals, a run. Default: 40.")
    ] = None,
    engines: Annotated[int, typer.Option(min=2, max=16)] = 4,
    time_scale: Annotated[
        float, typer.Option(min=0.05, max=20, help="2: engines at half an A100's speed.")
    ] = 1.5,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = OUT,
) -> None:
    """Compare, print, write; see the module's text."""
    configure_logs("error")
    console = Console()
    comparison = Comparison(
        engines=engines,
        time_scale=time_scale,
        seconds=seconds or (QUICK_SECONDS if quick else SECONDS),
        idle_requests=QUICK_IDLE_REQUESTS if quick else IDLE_REQUESTS,
        seeds=[seed] if quick else list(range(seed, seed + seeds)),
    )
    rows = contenders(only or [])
    if quick:
        rows = [row for row in rows if row.enter_rig is not None]
    missing = install({row.name for row in rows}, console)
    rows = [row for row in rows if row.name not in missing]
    if part is not Part.faults:
        report_load(console, comparison, rows, out)
    if part is not Part.load:
        report_faults(console, rows, seed, out)
    console.print(f"{processor()}; figures: {out}", highlight=False)


def install(names: Set[str], console: Console) -> set[str]:
    """Fetch the routers of these names; those that cannot be had, each told with its reason."""
    missing = set()
    for name, router in ROUTERS.items():
        if name not in names or environments.installed(router):
            continue
        console.print(
            f"fetching {router.requirement} into {environments.FOLDER}/ (some 150 MB)",
            highlight=False,
        )
        try:
            environments.install(router)
        except environments.NotInstalledError as error:
            console.print(f"{name} is left out: {error}", style="yellow", highlight=False)
            missing.add(name)
    return missing


def report_load(console: Console, comparison: Comparison, rows: list[Contender], out: Path) -> None:
    """Run under load; what there is is written after every run, since it takes its time."""
    out.mkdir(parents=True, exist_ok=True)
    done: list[Row] = []

    def on_row(row: Row) -> None:
        done.append(row)
        write_load(comparison, done, out)

    def tell(what: str) -> None:
        console.print(what, style="dim", highlight=False)

    uvloop.run(compare(comparison, rows, tell, on_row))
    for case in CASES:
        console.print(tables.rich_table(done, case))


def write_load(comparison: Comparison, rows: list[Row], out: Path) -> None:
    how = {
        "machine": processor(),
        "engines": comparison.engines,
        "time_scale": comparison.time_scale,
        "seconds": comparison.seconds,
        "seeds": list(comparison.seeds),
        "rate": {case: comparison.plan(case, comparison.seeds[0]).rate for case in CASES},
        "runs": tables.as_json(rows),
    }
    (out / "summary.json").write_text(json.dumps(how, indent=2) + "\n")
    (out / "runs.csv").write_text(tables.as_csv(rows))
    pages = [
        f"## {case}\n\n{tables.markdown(*tables.grid(rows, case))}"
        for case in CASES
        if any(row.case == case for row in rows)
    ]
    (out / "load.md").write_text("\n".join(pages))


def report_faults(console: Console, rows: list[Contender], seed: int, out: Path) -> None:
    """Break what has a rig; written after each."""
    out.mkdir(parents=True, exist_ok=True)
    reports: list[FaultReport] = []
    for row in rows:
        if row.enter_rig is None:
            continue
        console.print(f"faults: {row.label}", style="dim")
        reports.append(uvloop.run(break_things(row.label, row.enter_rig, seed)))
        (out / "faults.json").write_text(json.dumps(fault_table.as_json(reports), indent=2) + "\n")
        (out / "faults.md").write_text(tables.markdown(*fault_table.grid(reports)))
    console.print(fault_table.rich_table(reports))


if __name__ == "__main__":
    try:
        typer.run(main)
    except AstrolabeError as error:
        sys.stderr.write(f"rivals: {error}\n")
        sys.exit(2)
