"""SGLang's own scheduling code, run without SGLang.

Of its modules the classes that decide are compiled alone, so that nothing which they import is
needed, neither torch nor kernels. What they ask of the rest is sglang_stand_ins.py. Written for
0.5.23.
"""

import ast
import contextlib
import dataclasses
import enum
import typing
from collections.abc import Collection
from functools import cache
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from pipeline.messages import EngineLimits
from tests.predictor.sglang_stand_ins import StandInBatch, StandInRequest, StandInScheduler

SOURCES: dict[str, dict[str, Collection[str]]] = {
    "managers/scheduler_components/new_token_ratio_tracker.py": {"NewTokenRatioTracker": ()},
    "mem_cache/prefill_budget.py": {"PrefillBudget": ()},
    "managers/schedule_policy.py": {
        "AddReqResult": (),
        "_PrefillAdmission": (),
        "PrefillAdder": (),
    },
    "managers/schedule_batch.py": {
        "ScheduleBatch": {
            "new_tokens_required_next_decode",
            "check_decode_mem",
            "retract_decode",
            "_get_decode_retraction_order",
        }
    },
    "managers/scheduler.py": {
        "Scheduler": {
            "get_next_batch_to_run",
            "get_new_batch_prefill",
            "_get_new_batch_prefill_raw",
            "update_running_batch",
            "get_num_allocatable_reqs",
            "_reqs_finishing_inflight",
        }
    },
}
"""By module and class the methods that are taken; none named is the class as it is."""

Step = tuple[str, list[tuple[str, int]], int, float]
"""Kind of batch, who computes how many tokens, pages free, new token ratio; all once the step is
decided."""


class SourceScheduler:
    """The queues of one engine with these limits; a request is numbers, a step is what it says."""

    def __init__(self, folder: Path, limits: EngineLimits) -> None:
        """`folder` has the package `sglang` in it."""
        self._names = _names(limits)
        for code in _compiled(folder):
            exec(code, self._names)  # noqa: S102  # whoever runs this has named the folder
        kind = type("RunScheduler", (StandInScheduler, self._names["Scheduler"]), {})
        self._names["ScheduleBatch"] = type(
            "RunBatch", (StandInBatch, self._names["ScheduleBatch"]), {}
        )
        self._scheduler = kind(limits, self._names)

    def add(self, key: str, prompt: int, target: int, tokens_max: int) -> None:
        self._scheduler.waiting_queue.append(StandInRequest(key, prompt, target, tokens_max))

    def step(self) -> Step | None:
        """Decide a step and run it; None if there is nothing to do."""
        scheduler = self._scheduler
        plan = scheduler.get_next_batch_to_run(scheduler.running_batch, scheduler.last_batch)
        scheduler.running_batch, batch = plan.running_batch, plan.batch_to_run
        scheduler.last_batch = batch
        if batch is None:
            scheduler.new_token_ratio_tracker.reset()
            return None
        extends = batch.forward_mode.is_extend()
        step = (
            "prefill" if extends else "decode",
            [(request.rid, request.extend_len if extends else 1) for request in batch.reqs],
            scheduler.pool.pages,
            scheduler.new_token_ratio_tracker.current,
        )
        for request in batch.reqs:
            if request is not scheduler.chunked_req or not extends:
                request.output_ids.append(0)
                if request.finished():
                    scheduler.pool.give_back(request)
        return step


def _names(limits: EngineLimits) -> dict[str, Any]:
    """What the modules find as globals."""
    nowhere = type("Nowhere", (), {})
    start = limits.new_token_ratio_start
    settings = {
        "SGLANG_INIT_NEW_TOKEN_RATIO": start,
        "SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR": limits.new_token_ratio_min / start if start else 0.0,
        "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS": limits.new_token_ratio_decay_steps,
        "SGLANG_RETRACT_DECODE_STEPS": limits.retract_decode_steps,
    }
    schedule = SimpleNamespace(
        schedule_conservativeness=1.0,
        schedule_policy="fcfs",
        prefill_max_requests=None,
        retraction_policy="length",
    )
    parallel = SimpleNamespace(pp_max_micro_batch_size=limits.max_num_seqs)
    features = SimpleNamespace(enable_encoder_swa_bounded_replay=False)
    return {
        "List": list, "Optional": typing.Optional, "Tuple": tuple, "Dict": dict,
        "Enum": enum.Enum, "auto": enum.auto, "dataclass": dataclasses.dataclass,
        "contextmanager": contextlib.contextmanager, "nullcontext": contextlib.nullcontext,
        "envs": SimpleNamespace(
            **{name: SimpleNamespace(get=lambda value=value: value)
               for name, value in settings.items()}
        ),
        "get_schedule": lambda: schedule,
        "get_parallel": lambda: parallel,
        "get_exec": lambda: SimpleNamespace(features=features),
        "CLIP_MAX_NEW_TOKENS": limits.max_new_tokens_clip,
        "TEST_RETRACT": False, "_IS_HIP": False,
        "mamba_prefill_chunk_grid": lambda: 1, "_use_exact_chunk_fill": lambda: False,
        "page_interleave_shard_size": lambda _: 1,
        "SWATokenToKVPoolAllocator": nowhere,
        "DeepSeekV4HiSparseTokenToKVPoolAllocator": nowhere,
        "UnifiedMambaTokenToKVPoolAllocator": nowhere,
        "UnifiedMambaSWATokenToKVPoolAllocator": nowhere,
        "UnifiedRadixCache": nowhere,
        "beam_retraction_order": lambda order, _: order, "num_beam_member_rows": lambda _: 0,
        "split_cached_prefix_by_tier": lambda **_: (0, 0, 0),
        "logger": MagicMock(), "PrefillStats": MagicMock(),
        "set_time_batch": lambda *_: None, "set_schedule_time_batch": lambda *_: None,
        "NextBatchPlan": SimpleNamespace,
    }  # fmt: skip


@cache
def _compiled(folder: Path) -> list[CodeType]:
    """The classes of SOURCES. Raises FileNotFoundError, and KeyError of a class that is gone."""
    compiled = []
    for module, classes in SOURCES.items():
        path = folder / "sglang" / "srt" / module
        tree = ast.parse(path.read_text())
        found = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        taken = []
        for name, methods in classes.items():
            node = found[name]
            if methods:
                node.bases, node.decorator_list = [], []
                node.body = [_plain(n) for n in node.body if getattr(n, "name", "") in methods]
            taken.append(node)
        future = ast.parse("from __future__ import annotations").body
        compiled.append(compile(ast.Module([*future, *taken], []), str(path), "exec"))
    return compiled


def _plain(method: ast.stmt) -> ast.stmt:
    """Without decorators that measure."""
    assert isinstance(method, ast.FunctionDef)
    method.decorator_list = [
        one
        for one in method.decorator_list
        if isinstance(one, ast.Name) and one.id in ("staticmethod", "property")
    ]
    return method
