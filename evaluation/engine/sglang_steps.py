"""SGLang's side, run by the interpreter of SGLang's environment: a Script on stdin, a Traced a line
on stdout.

The engine is `sglang.Engine`, whose scheduler is a process of its own. That process imports this
module before it starts, as every process does that is spawned: so the hooks below are there too.
They only look. When a request is there cannot be chosen from outside, so it is written down.
"""

import asyncio
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from evaluation.engine.steps import Arrival, Case, Script, Step, Traced

EVENTS = "ASTROLABE_SGLANG_STEPS"
"""Variable that names the file where the scheduler's process writes."""
STEP_S = 0.01
"""About as long as a step takes here: what `at_step` is worth on the clock."""
SETTLES_S = 2.0


class Seen(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the file: a request that was not there before, or a step."""

    arrived: str = ""
    step: Step | None = None


class Looking:
    """The hooks. Of the requests that are retracted the step tells that follows."""

    def __init__(self, path: str) -> None:
        self._out = Path(path).open("ab", buffering=0)  # noqa: SIM115  as long as the process
        self._known: set[str] = set()
        self._lost: list[str] = []

    def deciding(self, scheduler: Any, *_: Any, **__: Any) -> None:
        for request in scheduler.waiting_queue:
            if request.rid not in self._known:
                self._known.add(request.rid)
                self._write(Seen(arrived=request.rid))

    def retracted(self, result: Any, *_: Any, **__: Any) -> None:
        self._lost += [request.rid for request in result[0]]

    def running(self, scheduler: Any, batch: Any, *_: Any, **__: Any) -> None:
        extends = batch.forward_mode.is_extend()
        chunks = [(r.rid, r.extend_end - r.prefix_len if extends else 1) for r in batch.reqs]
        pool, tree = scheduler.token_to_kv_pool_allocator, scheduler.tree_cache
        free = (pool.available_size() + tree.evictable_size()) // scheduler.page_size
        lost, self._lost = self._lost, []
        self._write(Seen(step=Step(chunks, lost, free)))

    def _write(self, seen: Seen) -> None:
        self._out.write(msgspec.json.encode(seen) + b"\n")


def look(path: str) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from workers.sglang_engine.plugin import BATCH, SCHEDULER

    looking = Looking(path)
    for target, hook, kind in (
        (f"{SCHEDULER}.get_next_batch_to_run", looking.deciding, HookType.BEFORE),
        (f"{SCHEDULER}.run_batch", looking.running, HookType.BEFORE),
        (f"{BATCH}.retract_decode", looking.retracted, HookType.AFTER),
    ):
        HookRegistry.register(target, hook, kind)


def main() -> None:
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what SGLang prints is not ours to read
    script = msgspec.json.decode(sys.stdin.buffer.read(), type=Script)
    with TemporaryDirectory() as folder:
        events = Path(folder) / "events"
        os.environ[EVENTS] = str(events)
        engine = made(script)
        try:
            for case in script.cases:
                events.write_bytes(b"")
                engine.loop.run_until_complete(run(engine, case))
                out.write(msgspec.json.encode(traced(case, events)) + b"\n")
                out.flush()
        finally:
            engine.shutdown()


def made(script: Script) -> Any:
    import sglang

    limits = script.limits
    return sglang.Engine(
        model_path=script.model,
        device="cpu",
        dtype="bfloat16",
        attention_backend="torch_native",
        sampling_backend="pytorch",
        disable_cuda_graph=True,
        disable_overlap_schedule=True,
        disable_radix_cache=not script.prefix_caching,
        mem_fraction_static=0.1,
        page_size=limits.block_size,
        max_total_tokens=limits.kv_blocks * limits.block_size,
        max_running_requests=limits.max_num_seqs,
        chunked_prefill_size=limits.max_num_batched_tokens,
        context_length=limits.max_model_len,
        schedule_conservativeness=limits.new_token_ratio_start / 0.7,
        log_level="error",
    )


async def run(engine: Any, case: Case) -> None:
    """The case through the engine; returns when it is idle again."""

    async def ask(arrival: Arrival) -> None:
        await asyncio.sleep(arrival.at_step * STEP_S)
        # `ignore_eos` would have SGLang admit by other rules when nothing is cached.
        tokens = {"max_new_tokens": arrival.tokens, "min_new_tokens": arrival.tokens}
        await engine.async_generate(
            input_ids=arrival.prompt,
            sampling_params={"temperature": 0.0, **tokens},
            rid=rid_of(case, arrival),
        )

    await asyncio.gather(*(ask(arrival) for arrival in case.arrivals))
    await asyncio.sleep(SETTLES_S)


def rid_of(case: Case, arrival: Arrival) -> str:
    """Of one engine's cases no two have the same."""
    return f"{case.name}.{arrival.key}"


def traced(case: Case, events: Path) -> Traced:
    """What was seen, with the arrivals as they were."""
    asked = {rid_of(case, arrival): arrival for arrival in case.arrivals}
    arrivals: list[Arrival] = []
    steps: list[Step] = []
    for line in events.read_bytes().splitlines():
        seen = msgspec.json.decode(line, type=Seen)
        if seen.step is not None:
            steps.append(seen.step)
        elif seen.arrived in asked:
            there = msgspec.structs.replace(
                asked[seen.arrived], key=seen.arrived, at_step=len(steps)
            )
            arrivals.append(there)
    return Traced(Case(case.name, arrivals), steps)


if path := os.environ.get(EVENTS):
    look(path)

if __name__ == "__main__":
    main()
