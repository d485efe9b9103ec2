"""Makes SGLang's scheduler report after every step. Loaded by SGLang in each of its processes, by
the entry point of the group `sglang.srt.plugins`; it does nothing unless it is told where to.

It decides nothing and changes nothing. What it touches of SGLang's insides stands here.
"""

import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from pipeline.messages import Admission, StepSample
from workers.report import ROWS_MAX, Report, Row, Sender

SOCKET = "ASTROLABE_SGLANG_SOCKET"
EXACT_VERSIONS = ("0.5.23",)
"""Whose scheduler was read and held against ours step by step."""
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
BATCH = "sglang.srt.managers.schedule_batch.ScheduleBatch"

log = logging.getLogger(__name__)


def register() -> None:
    """The entry point."""
    path = os.environ.get(SOCKET)
    if not path:
        return
    import sglang

    if sglang.__version__ not in EXACT_VERSIONS:
        log.warning("SGLang %s is not known: its scheduler does not report", sglang.__version__)
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.runtime_context import get_parallel

    reporter = Reporter(Sender(path), lambda: get_parallel().tp_rank == 0)
    hooks: list[tuple[str, Callable[..., None], Any]] = [
        (f"{SCHEDULER}.run_batch", reporter.began, HookType.BEFORE),
        (f"{SCHEDULER}.process_batch_result", reporter.ended, HookType.AFTER),
        (f"{SCHEDULER}.on_idle", reporter.idles, HookType.AFTER),
        (f"{BATCH}.retract_decode", reporter.retracted, HookType.AFTER),
    ]
    for target, hook, kind in hooks:
        HookRegistry.register(target, hook, kind)


class Reporter:
    """One scheduler's. A step that cannot be read ends the reports, not the scheduler."""

    def __init__(
        self,
        sender: Sender,
        leads: Callable[[], bool],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`leads` tells whether this scheduler reports: of several ranks all do the same."""
        self._sender: Sender | None = sender
        self._leads = leads
        self._clock = clock
        self._under_way: deque[tuple[float, StepSample]] = deque()
        """Steps that were launched and have not ended, each with when it was."""
        self._ended_at = 0.0
        self._steps = 0
        self._retracted = 0
        self._idle: tuple[int, int] | None = None
        """How many were in the batch and waited when it was told that there is nothing to run; it
        is asked without end while there is nothing."""

    def began(self, _: Any, batch: Any, *__: Any, **___: Any) -> None:
        """A batch is about to run."""
        if self._sender is not None:
            with self._giving_up_on_errors():
                self._under_way.append((self._clock(), sample(batch)))

    def ended(self, _: Any, scheduler: Any, batch: Any, *__: Any, **___: Any) -> None:
        """A batch's tokens are known."""
        if self._sender is None:
            return
        with self._giving_up_on_errors():
            now = self._clock()
            started, step = self._under_way.popleft()
            # Where the next step is launched before this one ends, it began when this one ended.
            duration_ms = (now - max(started, self._ended_at)) * 1000
            self._ended_at = now
            self._steps += 1
            self._idle = None
            timed = StepSample(
                step.tokens, step.prefill_work, step.context_tokens, step.sequences, duration_ms
            )
            self._send(scheduler, batch, timed)

    def idles(self, _: Any, scheduler: Any, *__: Any, **___: Any) -> None:
        """There is nothing to run: told once, and again when somebody gave up waiting."""
        with self._giving_up_on_errors():
            now = len(scheduler.running_batch.reqs), len(scheduler.waiting_queue)
            if now != self._idle:
                self._idle = now
                self._send(scheduler, None, None)

    def retracted(self, result: Any, *_: Any, **__: Any) -> None:
        """Requests lost their memory."""
        with self._giving_up_on_errors():
            self._retracted += len(result[0])

    def _send(self, scheduler: Any, batch: Any, step: StepSample | None) -> None:
        if self._sender is None or not self._leads():
            return
        self._sender.send(self._report(scheduler, batch, step))

    def _report(self, scheduler: Any, batch: Any, step: StepSample | None) -> Report:
        running = unfinished(scheduler, batch)
        waiting = scheduler.waiting_queue
        pool = scheduler.token_to_kv_pool_allocator
        free_tokens = pool.available_size() + scheduler.tree_cache.evictable_size()
        return Report(
            self._steps,
            [row(request, scheduler.chunked_req) for request in running[:ROWS_MAX]],
            [queued(request) for request in waiting[:ROWS_MAX]],
            len(waiting),
            free_tokens // scheduler.page_size,
            self._retracted,
            step,
            Admission(
                float(min(1.0, scheduler.new_token_ratio_tracker.current)),
                batch_full(scheduler, batch),
            ),
        )

    @contextlib.contextmanager
    def _giving_up_on_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._sender = None
            log.warning("SGLang's scheduler is not as expected, its reports end: %r", error)


def sample(batch: Any) -> StepSample:
    """What is in a batch that is about to run; its duration is not known yet."""
    if not batch.forward_mode.is_extend():
        past = sum(_past(request) for request in batch.reqs)
        return StepSample(len(batch.reqs), 0.0, past, len(batch.reqs), 0.0)
    tokens, work = 0, 0.0
    for request in batch.reqs:
        chunk = request.extend_end - request.prefix_len
        tokens += chunk
        work += chunk * (request.prefix_len + chunk / 2)
    return StepSample(tokens, work, 0, len(batch.reqs), 0.0)


def unfinished(scheduler: Any, batch: Any) -> list[Any]:
    """Those that decode, then those whose prefill was in a batch: both in the engine's order."""
    batches = [scheduler.running_batch, batch, getattr(scheduler, "cur_batch_for_debug", None)]
    found: dict[str, Any] = {}
    for one in batches:
        for request in one.reqs if one is not None else ():
            if not request.finished() and request.kv is not None:
                found.setdefault(request.rid, request)
    waiting = {request.rid for request in scheduler.waiting_queue}
    decoding = [r for rid, r in found.items() if rid not in waiting]
    cut = scheduler.chunked_req
    if cut is not None and cut.rid not in found:
        decoding.append(cut)
    return sorted(decoding, key=lambda request: request is cut)


def batch_full(scheduler: Any, batch: Any) -> bool:
    """Whether the next step tries nobody of the queue: whoever leaves the batch opens it."""
    running = scheduler.running_batch
    cut = batch is not None and batch.forward_mode.is_extend() and batch.chunked_req is not None
    if cut or not running.batch_is_full:
        return False
    gone = any(r.finished() for one in (running, batch) if one is not None for r in one.reqs)
    return bool(running.reqs) and not gone


def row(request: Any, cut: Any) -> Row:
    """One that runs. `cut` is the request whose prompt is computed in part."""
    computed = request.extend_end or request.prefix_len if request is cut else _past(request)
    return Row(
        request.rid,
        len(request.origin_input_ids),
        min(computed, _past(request)),
        len(request.output_ids),
        request.retraction_count,
    )


def queued(request: Any) -> Row:
    """One that waits."""
    return Row(
        request.rid,
        len(request.origin_input_ids),
        0,
        len(request.output_ids),
        request.retraction_count,
    )


def _past(request: Any) -> int:
    """Tokens whose KV entries it has while it decodes."""
    return len(request.origin_input_ids) + len(request.output_ids) - 1
