"""How long one forecast takes.

    make bench-predictor

Engines in the middle of their work (bench/engine_states.py) with so many running + waiting, the
published A30's step time and settings with a batch cap and a block pool that can hold the batch;
`tight`: with about the published engine's pool, so that it preempts; `sglang`: by its rules, where
the others are vLLM's; `under load`: the published engine itself, near saturation. Measured, each
over many engines and newcomers, on one core:

* cold: a new state of requests that were in earlier ones, and one probe, as nearly every probe
  meets it; until the newcomer has finished (the score `e2e`);
* cold_all: the same until all have finished, with the delay that the newcomer causes to the others
  (the score `marginal`), which takes a run without it too;
* probe, and `horizon_all`: what one more newcomer costs where the state is prepared;
* base: a new state, and a run without a newcomer until all have finished;
* load: the answer to a probe that asks for no more than that;
* reference: the plain simulation, step by step.

Times are the thread's CPU time: wall time would also measure who else is on the machine.
Prints a table and writes bench-results/predictor.json.
"""

import gc
import time
from collections.abc import Callable
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from bench.cpu import machine
from bench.engine_states import NEWCOMERS, STEP_TIME, Case, by_sglang, drawn, under_load
from pipeline.report import write_json
from predictor import simulation
from predictor.fast import Prepared
from predictor.forecast import marginal_delay_ms
from predictor.load import load_answer
from predictor.view import View

SIZES = ((8, 0), (48, 20), (256, 100), (256, 1000))
STATES = 40
REPEATS = 5
"""Of what is measured once a state; the least counts, as neighbours also cost CPU time: caches."""
REFERENCE_STATES = 5
TIGHT = 0.35
"""Of the blocks with which the batch would not preempt."""
RATE, ENGINES = 3.2, 8
"""Requests per second to each of so many engines under load; one saturates at about 3.5."""
OUT = Path("bench-results") / "predictor.json"


def main(seed: int = 1, states: int = STATES) -> None:
    """Measure and print; see the module's text."""
    report: dict[str, dict[str, float]] = {}
    for running, waiting in SIZES:
        cases = [drawn(running, waiting, seed + n) for n in range(states)]
        report[f"{running}+{waiting}"] = measured(cases)
    tight = [drawn(48, 20, seed + n, blocks=TIGHT) for n in range(states)]
    report["48+20 tight"] = measured(tight)
    sglang = [by_sglang(drawn(48, 20, seed + n)) for n in range(states)]
    report["48+20 sglang"] = measured(sglang)
    looks = -(-states // ENGINES)
    loaded = [one for n in range(ENGINES) for one in under_load(RATE, looks, seed + n)]
    report["under load"] = measured(loaded)
    console = Console()
    for quantile in ("p50", "p99"):
        console.print(_table(report, quantile))
    write_json(OUT, {**report, "machine": machine()})
    console.print(
        f"{machine()}; {states} states x {NEWCOMERS} newcomers, reference: {REFERENCE_STATES} "
        f"states; figures: {OUT}",
        highlight=False,
    )


def measured(cases: list[Case]) -> dict[str, float]:
    """Figures in ms by name."""
    gc.collect()
    gc.freeze()  # the benchmark's own heap is not to be searched in a forecast's time
    cold, cold_all, whole, loads, plain = [], [], [], [], []
    probes, wholes, preempting = [], [], 0
    for one in cases:
        limits, requests, first = one.limits, one.requests, one.newcomers[0]
        _prepared(one)  # what is known of each request's length is not new
        cold.append(_least_ms(lambda: _prepared(one).probe(first)))  # noqa: B023
        cold_all.append(_least_ms(lambda: _marginal(one)))  # noqa: B023
        whole.append(_least_ms(lambda: _prepared(one).base()))  # noqa: B023
        view = View("bench", "b", 0, limits, STEP_TIME, requests, age_ms=0.0)
        loads.append(_least_ms(lambda: load_answer(view, first)))  # noqa: B023
        prepared = _prepared(one)
        for newcomer in one.newcomers:
            probes.append(_ms(lambda: prepared.probe(newcomer)))  # noqa: B023
            wholes.append(_ms(lambda: prepared.probe(newcomer, horizon="all")))  # noqa: B023
            preempting += prepared.probe(newcomer).preemptions > 0
    for one in cases[:REFERENCE_STATES]:
        plain.append(
            _ms(
                lambda: simulation.simulate(
                    one.limits, STEP_TIME, one.requests, one.newcomers[0],  # noqa: B023
                    steps_max=1_000_000,
                )
            )
        )  # fmt: skip
    return {
        "p50_ms": _at(probes, 0.5),
        "p99_ms": _at(probes, 0.99),
        "horizon_all_p50_ms": _at(wholes, 0.5),
        "horizon_all_p99_ms": _at(wholes, 0.99),
        "cold_p50_ms": _at(cold, 0.5),
        "cold_p99_ms": _at(cold, 0.99),
        "cold_all_p50_ms": _at(cold_all, 0.5),
        "cold_all_p99_ms": _at(cold_all, 0.99),
        "load_p50_ms": _at(loads, 0.5),
        "load_p99_ms": _at(loads, 0.99),
        "base_p50_ms": _at(whole, 0.5),
        "reference_p50_ms": _at(plain, 0.5),
        "reference_p99_ms": _at(plain, 0.99),
        "preempting": preempting / len(probes),
    }


def _prepared(one: Case) -> Prepared:
    return Prepared(one.limits, STEP_TIME, one.requests)


def _marginal(one: Case) -> float:
    prepared = _prepared(one)
    forecast = prepared.probe(one.newcomers[0], horizon="all")
    return marginal_delay_ms(prepared.base(), forecast)


def _ms(call: Callable[[], object]) -> float:
    started = time.thread_time()
    call()
    return (time.thread_time() - started) * 1000


def _least_ms(call: Callable[[], object]) -> float:
    return min(_ms(call) for _ in range(REPEATS))


def _at(values: list[float], share: float) -> float:
    return round(sorted(values)[min(len(values) - 1, int(share * len(values)))], 4)


def _table(report: dict[str, dict[str, float]], quantile: str) -> Table:
    table = Table(title=f"One forecast, ms, {quantile}")
    table.add_column("state", no_wrap=True)
    columns = {
        "cold": "cold_",
        "cold, all": "cold_all_",
        "probe": "",
        "probe, all": "horizon_all_",
        "load": "load_",
        "by steps": "reference_",
    }
    for name in (*columns, "preempt"):
        table.add_column(name, justify="right")
    for state, figures in report.items():
        table.add_row(
            state,
            *(f"{figures[f'{prefix}{quantile}_ms']:.3f}" for prefix in columns.values()),
            f"{figures['preempting']:.0%}",
        )
    return table


if __name__ == "__main__":
    typer.run(main)
