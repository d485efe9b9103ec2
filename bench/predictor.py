"""How long one forecast takes.

    make bench-predictor

Engines in the middle of their work with (running, waiting) requests of ShareGPT-like lengths, the
published A30's step time and settings with a batch cap and a block pool that can hold the batch,
and a newcomer. Measured, each over many engines and newcomers, on one core:

* probe: what the newcomer costs where the state is prepared; the first probe of a state also
  computes what happens without it, the others share that. `p50_ms` is of the others;
* cold: state, base and one probe together, as when every probe meets a new state;
* load: the answer to a probe that asks for no more than that;
* reference: the plain simulation, step by step.

Times are the thread's CPU time: wall time would also measure who else is on the machine.
Prints a table and writes bench-results/predictor.json.
"""

import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from bench.cpu import machine
from pipeline.messages import EngineLimits, LengthEstimate, Probe, RequestState
from pipeline.report import write_json
from predictor import simulation
from predictor.fast import Prepared
from predictor.load import load_answer
from predictor.step_time import DEFAULT_PROFILE, LIMITS, PROFILES
from predictor.view import View

SIZES = ((8, 0), (48, 20), (256, 100), (256, 1000))
STATES = 40
PROBES = 25
"""Newcomers for each state."""
REFERENCE_STATES = 5
PROMPT_MEDIAN, PROMPT_SIGMA = 35, 1.4
ANSWER_MEDIAN, ANSWER_SIGMA = 286, 0.9
TOKENS_MAX = 2048
TIGHT = 0.35
"""Of the blocks that the batch would take: it then preempts."""
STEP_TIME = PROFILES[DEFAULT_PROFILE]
OUT = Path("bench-results") / "predictor.json"


@dataclass(frozen=True, slots=True)
class Case:
    """An engine's state, and what comes to it."""

    limits: EngineLimits
    requests: list[RequestState]
    newcomers: list[Probe]


def main(seed: int = 1, states: int = STATES) -> None:
    """Measure and print; see the module's text."""
    report: dict[str, dict[str, float]] = {}
    for running, waiting in SIZES:
        cases = [case(running, waiting, seed + n) for n in range(states)]
        report[f"{running}+{waiting}"] = measured(cases)
    tight = [case(48, 20, seed + n, blocks=TIGHT) for n in range(states)]
    report["48+20 tight"] = measured(tight)
    console = Console()
    console.print(_table(report))
    write_json(OUT, {**report, "machine": machine()})
    console.print(
        f"{machine()}; {states} states x {PROBES} newcomers, reference: {REFERENCE_STATES} states; "
        f"figures: {OUT}",
        highlight=False,
    )


def case(running: int, waiting: int, seed: int, *, blocks: float = 1.0) -> Case:
    """Seeded. Running requests are caught at a uniformly random point of their answers."""
    rng = random.Random(seed)
    requests, held = [], 0
    for number in range(running + waiting):
        prompt, answer = _prompt(rng), _answer(rng)
        generated = rng.randint(1, answer - 1) if number < running else 0
        runs = number < running
        requests.append(
            RequestState(
                key=f"client.{number}",
                phase="decoding" if runs else "waiting",
                prompt_tokens=prompt,
                computed_tokens=prompt + generated - 1 if runs else 0,
                generated_tokens=generated,
                max_tokens=TOKENS_MAX,
                p10=answer / 3,
                p50=answer,
                p90=answer * 3,
            )
        )
        held = max(held, prompt + answer)
    own = LIMITS[DEFAULT_PROFILE]
    # Every place of the batch with 1,000 tokens, as the published engine's 1,052 blocks for 48
    # do not hold: there it preempts.
    pool = int(blocks * max(1, running) * 1000 / own.block_size)
    limits = EngineLimits(
        rules="vllm",
        block_size=own.block_size,
        kv_blocks=max(pool, 2 * held // own.block_size),
        max_num_seqs=max(48, running),
        max_num_batched_tokens=own.max_num_batched_tokens,
        max_model_len=own.max_model_len,
    )
    newcomers = []
    for number in range(PROBES):
        answer = _answer(rng)
        newcomers.append(
            Probe(
                key=f"new.{number}",
                prompt_tokens=_prompt(rng),
                estimate=LengthEstimate(p10=answer / 3, p50=answer, p90=answer * 3, source="test"),
            )
        )
    return Case(limits, requests, newcomers)


def _prompt(rng: random.Random) -> int:
    return max(1, min(1500, round(rng.lognormvariate(0, PROMPT_SIGMA) * PROMPT_MEDIAN)))


def _answer(rng: random.Random) -> int:
    return max(2, min(TOKENS_MAX, round(rng.lognormvariate(0, ANSWER_SIGMA) * ANSWER_MEDIAN)))


def measured(cases: list[Case]) -> dict[str, float]:
    """Figures in ms by name."""
    gc.collect()
    gc.freeze()  # the benchmark's own heap is not to be searched in a forecast's time
    cold, whole, probes, wholes, loads, plain, preempting = [], [], [], [], [], [], 0
    for one in cases:
        limits, requests, first = one.limits, one.requests, one.newcomers[0]
        cold.append(
            _ms(lambda: Prepared(limits, STEP_TIME, requests).probe(first))  # noqa: B023
        )
        prepared = Prepared(limits, STEP_TIME, requests)
        whole.append(_ms(prepared.base))
        view = View("bench", "b", 0, limits, STEP_TIME, requests, age_ms=0.0)
        loads.append(_ms(lambda: load_answer(view, first)))  # noqa: B023
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
        "load_p50_ms": _at(loads, 0.5),
        "load_p99_ms": _at(loads, 0.99),
        "base_p50_ms": _at(whole, 0.5),
        "reference_p50_ms": _at(plain, 0.5),
        "reference_p99_ms": _at(plain, 0.99),
        "preempting": preempting / len(probes),
    }


def _ms(call: Callable[[], object]) -> float:
    started = time.thread_time()
    call()
    return (time.thread_time() - started) * 1000


def _at(values: list[float], share: float) -> float:
    return round(sorted(values)[min(len(values) - 1, int(share * len(values)))], 4)


def _table(report: dict[str, dict[str, float]]) -> Table:
    table = Table(title="One forecast, ms: p50 / p99")
    table.add_column("running+waiting")
    columns = {
        "probe": "",
        "probe, all finishing": "horizon_all_",
        "cold": "cold_",
        "load": "load_",
        "reference": "reference_",
    }
    for name in columns:
        table.add_column(name, justify="right")
    table.add_column("base", justify="right")
    table.add_column("preempting", justify="right")
    for size, figures in report.items():
        table.add_row(
            size,
            *(
                f"{figures[f'{prefix}p50_ms']:.3f} / {figures[f'{prefix}p99_ms']:.3f}"
                for prefix in columns.values()
            ),
            f"{figures['base_p50_ms']:.3f}",
            f"{figures['preempting']:.0%}",
        )
    return table


if __name__ == "__main__":
    typer.run(main)
