"""`astrolabe evaluate`: experiments in the simulated world, whose code is imported when used."""

import importlib.util
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pipeline.errors import UsageError

NEEDED = ("matplotlib", "scipy")
EXTRA = "evaluation"
ALL = "all"
ENGINE = "engine"
"""Not of the simulated world, and not of `all`: it needs a real vLLM."""
QUICK_REQUESTS = 1_200
FULL_SEEDS, QUICK_SEEDS = 5, 3
OUT = Path("evaluation-results")

HELP = (
    "Measure placement policies in the simulated world: the policies, the predictor and the "
    "engine's steps that run live, in virtual time.\n\n"
    f"Each experiment writes rows.csv, summary.json, table.md, plot.png, plot.svg and report.md "
    f"into {OUT}/EXPERIMENT. Every policy meets the same requests at the same times, and every "
    "number comes with its 95 % interval over seeds. Runs are kept: what was interrupted goes on, "
    "and what experiments share is run once.\n\n"
    "Start with: astrolabe evaluate sweep --quick"
)


def evaluate(
    experiment: Annotated[
        str,
        typer.Argument(help="What to measure. `list` names all that there are, `all` runs them."),
    ],
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A first look: two minutes an experiment on two cores."),
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, max=1000, help=f"How many. Default: {FULL_SEEDS}, quick {QUICK_SEEDS}."
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            min=10,
            max=1_000_000,
            help="Of one run. Default: 10000 as in the paper, or 4000 where none is compared with "
            f"it; quick {QUICK_REQUESTS}.",
        ),
    ] = None,
    rates: Annotated[
        str | None, typer.Option(help="Requests a second, such as 28,30,32, instead of its own.")
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(
            help="Whom to compare, such as llumnix,power_of_two/e2e (a policy, and a score behind "
            "a slash), instead of its own list; the default is always among them."
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Processes. Default: one a processor.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            envvar="ASTROLABE_DATA",
            help="Folder with traces (docs/workloads.md); without it, lengths are synthetic.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for results.")] = OUT,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run everything again, whatever was kept.")
    ] = False,
) -> None:
    if experiment == ENGINE:
        if importlib.util.find_spec("engines") is None:
            raise UsageError(
                f"{ENGINE}: runs in a checkout of the repository, after `make engines`"
            )
        from evaluation.engine.conduct import conduct as conduct_engine

        conduct_engine(out, seeds=seeds or QUICK_SEEDS, quick=quick, console=Console())
        return
    _check_extra()
    from evaluation.experiments.conduct import conduct
    from evaluation.experiments.contenders import parse_contenders
    from evaluation.experiments.registry import EXPERIMENTS
    from evaluation.experiments.report import Made
    from evaluation.experiments.runs import CellsFailed
    from evaluation.experiments.scale import Scale

    console = Console()
    if experiment == "list":
        for one in EXPERIMENTS.values():
            console.print(f"{one.name:<14}{one.line}", highlight=False, soft_wrap=True)
        console.print(f"{ENGINE:<14}the prediction on a real vLLM (`make engines`)")
        return
    if experiment not in (*EXPERIMENTS, ALL):
        names = ", ".join((*EXPERIMENTS, ENGINE, ALL))
        raise UsageError(f"experiment {experiment}: choose from {names}")
    if data is not None and not data.is_dir():
        raise UsageError(f"--data {data}: no such folder")
    chosen_rates = None if rates is None else parse_rates(rates)
    chosen = EXPERIMENTS.values() if experiment == ALL else [EXPERIMENTS[experiment]]
    contenders = None if policies is None else parse_contenders(policies)
    if policies is not None and not all(one.takes_policies for one in chosen):
        takers = ", ".join(one.name for one in EXPERIMENTS.values() if one.takes_policies)
        raise UsageError(f"--policies {policies}: only for {takers}")
    failures: list[str] = []
    for one in chosen:
        scale = Scale(
            quick=quick,
            seeds=tuple(range(seeds or (QUICK_SEEDS if quick else FULL_SEEDS))),
            requests=requests or (QUICK_REQUESTS if quick else one.requests),
            folder=None if data is None else str(data),
            rates=chosen_rates,
            contenders=contenders,
        )
        options = {
            "--seeds": seeds,
            "--requests": requests,
            "--rates": rates,
            "--policies": policies,
        }
        made = Made(_command(one.name, quick, options), scale)
        try:
            conduct(one, made, out, jobs=jobs or os.cpu_count() or 1, fresh=fresh, console=console)
        except CellsFailed as error:  # the other experiments are worth having
            failures.append(str(error))
    if failures:
        raise CellsFailed("; ".join(failures))


def parse_rates(text: str) -> tuple[float, ...]:
    """Of `28,30,32`. Raises UsageError."""
    try:
        rates = tuple(float(rate) for rate in text.split(","))
    except ValueError:
        raise UsageError(
            f"--rates {text}: numbers with commas between them, such as 28,32"
        ) from None
    if not all(0 < rate <= 10_000 for rate in rates) or len(set(rates)) != len(rates):
        raise UsageError(f"--rates {text}: each above 0, at most 10000, and once")
    return rates


def _check_extra() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{' and '.join(missing)} missing: pip install 'astrolabe[{EXTRA}]' (tables need "
            "intervals, and reports have plots)"
        )


def _command(name: str, quick: bool, options: Mapping[str, object]) -> str:
    """What repeats it, but for where data and results lie."""
    words = ["astrolabe", "evaluate", name, *(["--quick"] if quick else [])]
    for option, value in options.items():
        if value is not None:
            words += [option, str(value)]
    return shlex.join(words)
