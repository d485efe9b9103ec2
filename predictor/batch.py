"""The members of a batch that decodes in lock-step, and its block account, over plain numbers.

As long as nobody joins or leaves, every decoding request gets one token a step: k steps are one
closed form. So a request is two numbers: how many KV entries it will have when it has finished
(`last`), and the decode step at which that will be (`finish_at`). What it has computed by now,
how many tokens it still has to generate, and in which steps it needs another block all follow.
Who finishes next is the top of a heap; how many blocks k steps take is read off a histogram of
`finish_at - last` modulo the block size, since a request needs a block in the decode steps that
have the same remainder.

It knows no durations (predictor/lockstep.py) and no rules (predictor/rules).
"""

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Self

from pipeline.messages import EngineLimits, StepTime
from predictor.queues import Newcomer, Queues
from predictor.spans import Span

ROW_BITS = 20
"""A heap entry is finish_at << ROW_BITS | row: comparing one integer is cheaper than a pair."""
ROW_MASK = (1 << ROW_BITS) - 1


class Batch:
    """The decoding requests of one engine, and the queues around them. A row is the queues'."""

    __slots__ = (
        "base_ms", "block_size", "clock", "context", "context_ms", "decoding", "done", "finish_at",
        "finish_ms", "finished", "first_ms", "flat_ms", "free", "free_min", "heap", "last", "left",
        "limits", "now", "order", "phases", "preemptions", "prefill_ms", "prefilled", "prefilling",
        "produced", "sequence_ms", "spans", "step_read", "step_sequences", "step_tokens",
        "step_work", "steps", "targets", "token_ms", "waiting", "watched",
    )  # fmt: skip

    def __init__(self, limits: EngineLimits, step_time: StepTime, queues: Queues) -> None:
        """`queues.running` is those that decode, then those that prefill."""
        self.limits = limits
        self.block_size = size = limits.block_size
        self.base_ms, self.flat_ms = step_time.base_ms, step_time.flat_ms
        self.token_ms, self.prefill_ms = step_time.token_ms, step_time.prefill_ms
        self.context_ms, self.sequence_ms = step_time.context_ms, step_time.sequence_ms
        self.targets = queues.targets
        self.last = [p + t - 1 for p, t in zip(queues.prompts, queues.targets, strict=True)]
        self.left = [t - g for t, g in zip(queues.targets, queues.generated, strict=True)]
        """Tokens to generate, of those that do not decode."""
        self.prefilled = queues.computed[:]
        """KV entries of those in `prefilling`."""
        self.finish_at = [0] * len(self.last)
        """0 for those that do not decode."""
        self.waiting = deque(queues.waiting)
        self.prefilling: list[int] = []
        """In the running list, behind all that decode."""
        self.order: list[int] = []
        """The running list's decoding part; those with `finish_at` 0 have left it."""
        self.heap: list[int] = []
        self.phases = [0] * size
        self.clock = self.steps = self.decoding = self.context = 0
        self.preemptions = self.produced = 0
        self.step_tokens = self.step_sequences = self.step_read = 0
        self.step_work = self.now = 0.0
        self.free = self.free_min = limits.kv_blocks
        self.finished: list[int] = []
        """Rows, in order."""
        self.finish_ms: list[float] = []
        """Beside `finished`."""
        self.watched = -1
        """The row whose first token's time is kept."""
        self.first_ms: float | None = None
        self.done = False
        """The watched row has finished."""
        self.spans: list[Span] | None = None
        """What was done, if it is to be kept."""
        self._restore(queues)

    def _restore(self, queues: Queues) -> None:
        size, left, last = self.block_size, self.left, self.last
        free, context = self.free, 0
        for row in queues.running:
            computed = queues.computed[row]
            if queues.generated[row] and computed + left[row] == last[row]:
                # Only its newest token still lacks an entry.
                self._place(row, left[row])
                context += computed
                free += -computed // size  # floor of the negative: minus the blocks, rounded up
            else:
                self.prefilling.append(row)
                free -= self.prefill_blocks(row)
        self.decoding, self.context, self.free = len(self.order), context, free
        heapify(self.heap)

    def _place(self, row: int, finish_at: int) -> None:
        self.finish_at[row] = finish_at
        self.order.append(row)
        self.heap.append(finish_at << ROW_BITS | row)
        self.phases[(finish_at - self.last[row]) % self.block_size] += 1

    def copy(self) -> Self:
        """One that goes its own way, and keeps no spans."""
        other = object.__new__(type(self))
        for name in Batch.__slots__:
            setattr(other, name, getattr(self, name))
        for name in ("last", "left", "prefilled", "finish_at", "waiting", "prefilling", "order",
                     "heap", "phases", "finished", "finish_ms", "targets"):  # fmt: skip
            setattr(other, name, getattr(self, name).copy())
        other.spans = None
        return other

    def append(self, asked: Newcomer) -> int:
        """A fresh request behind all that wait; its row, whose first token's time is kept."""
        row = self.watched = len(self.last)
        self.last.append(asked.prompt + asked.target - 1)
        self.left.append(asked.target)
        self.targets.append(asked.target)
        self.prefilled.append(0)
        self.finish_at.append(0)
        self.waiting.append(row)
        return row

    @property
    def busy(self) -> bool:
        """Somebody is there."""
        return bool(self.decoding or self.waiting or self.prefilling)

    def prefill_blocks(self, row: int) -> int:
        """What a row in `prefilling` holds."""
        return -(-self.prefilled[row] // self.block_size)

    def leave(self) -> None:
        """Those whose last token came with the step just taken free their blocks."""
        heap, clock, finish_at = self.heap, self.clock, self.finish_at
        while heap and heap[0] >> ROW_BITS <= clock:
            entry = heappop(heap)
            row = entry & ROW_MASK
            due = entry >> ROW_BITS
            if finish_at[row] == due:  # or it was preempted since
                last = self.last[row]
                finish_at[row] = 0
                self.decoding -= 1
                self.context -= last
                self.phases[(due - last) % self.block_size] -= 1
                self.end(row, last)

    def end(self, row: int, computed: int) -> None:
        """It has generated all its tokens; `computed` is what it holds."""
        self.free -= -computed // self.block_size
        self.finished.append(row)
        self.finish_ms.append(self.now)
        if row == self.watched:
            self.done = True

    def join(self, rows: Iterable[int]) -> None:
        """Those whose prefill ended with the step just taken: each has one token more."""
        for row in rows:
            if row == self.watched and self.first_ms is None:
                self.first_ms = self.now
            self.produced += 1
            left = self.left[row] - 1
            last = self.last[row]
            if left == 0:
                self.end(row, last)
                continue
            self.finish_at[row] = due = self.clock + left
            self.order.append(row)
            heappush(self.heap, due << ROW_BITS | row)
            self.phases[(due - last) % self.block_size] += 1
            self.decoding += 1
            self.context += last - left

    def steps_to_finish(self) -> int:
        """Decode steps until the next one leaves. There must be one."""
        heap, finish_at = self.heap, self.finish_at
        while finish_at[heap[0] & ROW_MASK] != heap[0] >> ROW_BITS:
            heappop(heap)
        return (heap[0] >> ROW_BITS) - self.clock

    # ------------------------------------------------------------------ blocks

    def blocks_for(self, k: int) -> int:
        """What the decoding ones take in the next k steps."""
        size, phases = self.block_size, self.phases
        full, rest = divmod(k, size)
        start = self.clock % size
        end = start + rest
        need = sum(phases[start:end])
        if end > size:
            need += sum(phases[: end - size])
        return need + full * self.decoding

    def steps_with(self, free: int) -> int:
        """How many decode steps so many blocks allow; fewer than `blocks_for` says fit."""
        size, phases = self.block_size, self.phases
        k = 0
        if free >= self.decoding:
            rounds, free = divmod(free, self.decoding)
            k = rounds * size
        slot = (self.clock + k) % size
        # Also below zero, where a restored state does not add up: who needs none goes on.
        while not phases[slot] or phases[slot] <= free:
            free -= phases[slot]
            slot = (slot + 1) % size
            k += 1
        return k

    def compact(self) -> list[int]:
        """The decoding rows in the running list's order."""
        finish_at = self.finish_at
        self.order = order = [row for row in self.order if finish_at[row]]
        return order

    def evict_last(self) -> int:
        """The last decoding one loses its blocks and what was computed; its row. The order must
        be compact, and the step under way has not reached it."""
        row = self.order.pop()
        last = self.last[row]
        due = self.finish_at[row]
        self.finish_at[row] = 0
        self.left[row] = left = due - self.clock
        self.free -= -(last - left) // self.block_size
        self.decoding -= 1
        self.context -= last - left
        self.phases[(due - last) % self.block_size] -= 1
        self.preemptions += 1
        return row
