"""vLLM's schedulers with a report after every step. Imported by vLLM in its engine's process.

They decide nothing: what the configuration would have picked is inherited from, and called.
"""

import time
from collections import deque
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from pipeline.messages import StepSample
from workers.report import ROWS_MAX, Report, Row, Sender
from workers.vllm_engine.internals import SOCKET, client_id


class _Reporting:
    """Over one of vLLM's schedulers."""

    reports_to_astrolabe = True

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        path = self.vllm_config.additional_config.get(SOCKET)  # type: ignore[attr-defined]
        self._sender = None if path is None else Sender(path)
        self._under_way: deque[tuple[float, StepSample]] = deque()
        """Steps that were decided and have not ended, each with when it was."""
        self._ended_at = 0.0
        self._steps = 0
        self._preempted = 0

    def schedule(self, *args: Any, **more: Any) -> Any:
        started = time.perf_counter()
        output = super().schedule(*args, **more)  # type: ignore[misc]
        self._under_way.append((started, self._sample(output.num_scheduled_tokens)))
        return output

    def update_from_output(self, *args: Any, **more: Any) -> Any:
        outputs = super().update_from_output(*args, **more)  # type: ignore[misc]
        now = time.perf_counter()
        started, sample = self._under_way.popleft()
        # Where the next step is decided before this one ends, it began when the one before ended.
        duration_ms = (now - max(started, self._ended_at)) * 1000
        self._ended_at = now
        if not sample.tokens:
            return outputs
        self._steps += 1
        step = StepSample(
            sample.tokens,
            sample.prefill_work,
            sample.context_tokens,
            sample.sequences,
            duration_ms,
        )
        self._report(step)
        return outputs

    def finish_requests(self, *args: Any, **more: Any) -> Any:
        finished = super().finish_requests(*args, **more)  # type: ignore[misc]
        self._report(None)
        return finished

    def _preempt_request(self, *args: Any, **more: Any) -> Any:
        self._preempted += 1
        return super()._preempt_request(*args, **more)  # type: ignore[misc]

    def _sample(self, scheduled: dict[str, int]) -> StepSample:
        """What is in a step that was just decided; its duration is not known yet."""
        tokens = context_tokens = 0
        prefill_work = 0.0
        for request_id, chunk in scheduled.items():
            request = self.requests[request_id]  # type: ignore[attr-defined]
            before = request.num_computed_tokens - chunk
            tokens += chunk
            if chunk == 1 and before >= request.num_prompt_tokens:
                context_tokens += before
            else:
                prefill_work += chunk * (before + chunk / 2)
        return StepSample(tokens, prefill_work, context_tokens, len(scheduled), 0.0)

    def _report(self, step: StepSample | None) -> None:
        if self._sender is None:
            return
        waiting = list(self.waiting)  # type: ignore[attr-defined]
        pool = self.kv_cache_manager.block_pool  # type: ignore[attr-defined]
        self._sender.send(
            Report(
                self._steps,
                [_row(request) for request in self.running[:ROWS_MAX]],  # type: ignore[attr-defined]
                [_row(request) for request in waiting[:ROWS_MAX]],
                len(waiting),
                pool.get_num_free_blocks(),
                self._preempted,
                step,
            )
        )


def _row(request: Any) -> Row:
    generated = request.num_output_tokens
    computed = min(request.num_computed_tokens, request.num_prompt_tokens + max(0, generated - 1))
    return Row(
        client_id(request.request_id),
        request.num_prompt_tokens,
        computed,
        generated,
        request.num_preemptions,
    )


class ReportingScheduler(_Reporting, Scheduler):  # type: ignore[misc]
    """Where steps are decided one after the other."""


class ReportingAsyncScheduler(_Reporting, AsyncScheduler):  # type: ignore[misc]
    """Where a step is decided while the one before it runs."""
