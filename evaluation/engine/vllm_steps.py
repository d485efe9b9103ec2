"""vLLM's side, run by the interpreter of vLLM's environment: a Script on stdin, a Trace a line on
stdout.

The engine is `LLMEngine` in this very process, so that its scheduler can be looked at after every
step. Nothing of it is changed: `schedule` is called, and what it returns is written down.
"""

import os
import sys
import time
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import msgspec

from evaluation.engine.steps import Case, Script, Step, Trace
from workers.vllm_engine.internals import client_id

STEPS_MAX = 20_000


def main() -> None:
    from vllm import EngineArgs, LLMEngine

    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what vLLM prints is not ours to read
    script = msgspec.json.decode(sys.stdin.buffer.read(), type=Script)
    limits = script.limits
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=script.model,
            dtype="bfloat16",
            enforce_eager=True,
            kv_cache_memory_bytes=256 << 20,
            block_size=limits.block_size,
            num_gpu_blocks_override=limits.kv_blocks + 1,  # one of them is the null block
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_model_len=limits.max_model_len,
            enable_prefix_caching=script.prefix_caching,
            watermark=limits.watermark,
            disable_log_stats=True,
        )
    )
    for case in script.cases:
        out.write(msgspec.json.encode(Trace(case.name, run(engine, case))) + b"\n")
        out.flush()


def run(engine: Any, case: Case) -> list[Step]:
    """The case through the engine; returns when it is idle again."""
    from vllm import SamplingParams

    scheduler = engine.engine_core.engine_core.scheduler
    pool = scheduler.kv_cache_manager.block_pool
    decided: list[tuple[list[tuple[str, int]], list[str], int]] = []
    schedule = scheduler.schedule

    def watched(*args: Any, **more: Any) -> Any:
        before = {r.request_id: r.num_preemptions for r in scheduler.running}
        running = list(scheduler.running)
        output = schedule(*args, **more)
        # The last of the running list goes first.
        lost = [r for r in reversed(running) if r.num_preemptions > before[r.request_id]]
        chunks = [(client_id(key), n) for key, n in output.num_scheduled_tokens.items()]
        preempted = [client_id(r.request_id) for r in lost]
        decided.append((chunks, preempted, pool.get_num_free_blocks()))
        return output

    scheduler.schedule = watched
    steps: list[Step] = []
    coming = list(reversed(case.arrivals))
    try:
        while coming or engine.has_unfinished_requests():
            if len(steps) > STEPS_MAX:
                raise RuntimeError(f"{case.name}: no end after {STEPS_MAX} steps")
            idle = not engine.has_unfinished_requests()
            while coming and (idle or coming[-1].at_step <= len(steps)):
                arrival, idle = coming.pop(), False
                engine.add_request(
                    arrival.key,
                    {"prompt_token_ids": arrival.prompt},
                    SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=arrival.tokens),
                )
            started = time.perf_counter()
            engine.step()
            duration_ms = (time.perf_counter() - started) * 1000
            if decided:  # a step in which nothing was scheduled is none
                steps += [Step(*one, duration_ms=duration_ms) for one in decided if one[0]]
                decided.clear()
    finally:
        scheduler.schedule = schedule
    return steps


if __name__ == "__main__":
    main()
