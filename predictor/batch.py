"""The members of a batch that decodes in lock-step, and its block account, over plain numbers.

As long as nobody joins or leaves, every decoding request gets one token a step: k steps are one
closed form. So a request is two numbers: how many KV entries it will have when it has finished
(`last`), and the decode step at which that will be (`finish_at`). What it has computed by now,
how many tokens it still has to generate, and in which steps it needs another block all follow.
Who finishes next is the first of a sorted list; how many blocks k steps take is read off a
histogram of `finish_at - last` modulo the block size, since a request needs a block in the decode
steps that have the same remainder.

It knows no durations (predictor/lockstep.py) and no rules (predictor/rules).
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from operator import add, sub
from typing import Self

from pipeline.messages import EngineLimits, StepTime
from predictor.queues import Newcomer, Queues

ROW_BITS = 20
"""An entry of `ends` is finish_at << ROW_BITS | row: one integer is cheaper than a pair."""
ROW_MASK = (1 << ROW_BITS) - 1
UNBOUNDED = 1 << 62


class Batch:
    """The decoding requests of one engine, and the queues around them. A row is the queues'."""

    __slots__ = (
        "base_ms", "block_size", "clock", "context", "context_ms", "decoding", "done", "ends",
        "events_left", "finish_at", "finish_ms", "finished", "first_ms", "flat_ms", "free",
        "free_min", "last", "left", "limits", "now", "opened", "opens_next", "order", "phases",
        "preemptions", "prefill_ms", "prefilled", "prefilling", "produced", "sequence_ms",
        "step_read", "step_sequences", "step_tokens", "step_work", "steps", "targets", "token_ms",
        "waiting", "watched", "watermark",
    )  # fmt: skip

    def __init__(self, limits: EngineLimits, step_time: StepTime, queues: Queues) -> None:
        """`queues.running` is those that decode, then those that prefill."""
        self.limits = limits
        self.block_size = limits.block_size
        self.base_ms, self.flat_ms = step_time.base_ms, step_time.flat_ms
        self.token_ms, self.prefill_ms = step_time.token_ms, step_time.prefill_ms
        self.context_ms, self.sequence_ms = step_time.context_ms, step_time.sequence_ms
        self.watermark = int(limits.watermark * limits.kv_blocks)
        """Blocks that an admission has to leave free."""
        self.targets = queues.targets
        self.last: list[int] = [tokens - 1 for tokens in map(add, queues.prompts, queues.targets)]
        self.left: list[int] = list(map(sub, queues.targets, queues.generated))
        """Tokens to generate, of those that do not decode."""
        self.prefilled = queues.computed[:]
        """KV entries of those in `prefilling`."""
        self.waiting = deque(queues.waiting)
        self.events_left = UNBOUNDED
        """How many more may be run through."""
        self.clock = self.steps = 0
        self.preemptions = self.produced = 0
        self.step_tokens = self.step_sequences = self.step_read = 0
        self.step_work = self.now = 0.0
        self.finished: list[int] = []
        """Rows, in order."""
        self.finish_ms: list[float] = []
        """Beside `finished`."""
        self.watched = -1
        """The row whose first token's time is kept."""
        self.first_ms: float | None = None
        self.done = False
        """The watched row has finished."""
        self.opened = False
        """There was a step in which one more request, behind all that wait, would have been
        tried."""
        self.opens_next = False
        """The next step will be such a one. Not always noticed before."""
        self._restore(queues)

    def _restore(self, queues: Queues) -> None:
        size, left, computed_of = self.block_size, self.left, queues.computed
        running, decoding = queues.running, queues.decoding
        if decoding < 0:  # for rules by which it is no matter in which order they are
            running = sorted(running, key=lambda row: not queues.decodes(row))
            decoding = sum(map(queues.decodes, running))
        self.decoding = decoding
        self.order = order = running[:decoding]
        """The running list's decoding part; those with `finish_at` 0 have left it."""
        self.prefilling = prefilling = running[decoding:]
        """In the running list, behind all that decode."""
        self.ends = sorted([left[row] << ROW_BITS | row for row in order])
        """Of all that decode."""
        self.finish_at = finish_at = [0] * len(left)
        """0 for those that do not decode."""
        self.phases = phases = [0] * size
        held = [computed_of[row] for row in order]  # only its newest token still lacks an entry
        for row, computed in zip(order, held, strict=True):
            finish_at[row] = left[row]
            phases[-computed % size] += 1
        self.context = sum(held)
        self.free_min = self.free = self.limits.kv_blocks
        self.free += sum([-computed // size for computed in held])  # minus the blocks, rounded up
        for row in prefilling:
            self.free -= self.prefill_blocks(row)

    def copy(self) -> Self:
        """One that goes its own way."""
        other = object.__new__(type(self))
        for name in _SHARED:
            setattr(other, name, getattr(self, name))
        other.last, other.left, other.targets = self.last[:], self.left[:], self.targets[:]
        other.prefilled, other.prefilling = self.prefilled[:], self.prefilling[:]
        other.finish_at, other.order, other.ends = self.finish_at[:], self.order[:], self.ends[:]
        other.finished, other.finish_ms = self.finished[:], self.finish_ms[:]
        other.waiting, other.phases = self.waiting.copy(), self.phases[:]
        return other

    def append(self, asked: Newcomer) -> int:
        """A fresh request behind all that wait; its row, whose first token's time is kept. Nobody
        is to follow it: `opened` counts as set."""
        self.opened = True
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
        ends, clock = self.ends, self.clock
        while ends and ends[0] >> ROW_BITS <= clock:
            row = ends.pop(0) & ROW_MASK
            last = self.last[row]
            self.finish_at[row] = 0
            self.decoding -= 1
            self.context -= last
            self.phases[(clock - last) % self.block_size] -= 1
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
            insort(self.ends, due << ROW_BITS | row)
            self.phases[(due - last) % self.block_size] += 1
            self.decoding += 1
            self.context += last - left

    def steps_to_finish(self) -> int:
        """Decode steps until the next one leaves. There must be one."""
        return (self.ends[0] >> ROW_BITS) - self.clock

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

    def last_decoding(self) -> int:
        """The last decoding row of the running list. There must be one."""
        order, finish_at = self.order, self.finish_at
        while not finish_at[order[-1]]:
            order.pop()
        return order[-1]

    def evict_last(self) -> int:
        """The last decoding one loses its blocks and what was computed; its row. The step under
        way has not reached it."""
        row = self.last_decoding()
        self.order.pop()
        last = self.last[row]
        due = self.finish_at[row]
        self.finish_at[row] = 0
        self.left[row] = left = due - self.clock
        self.free -= -(last - left) // self.block_size
        self.decoding -= 1
        self.context -= last - left
        self.phases[(due - last) % self.block_size] -= 1
        del self.ends[bisect_left(self.ends, due << ROW_BITS | row)]
        self.preemptions += 1
        return row


_SHARED = tuple(
    name
    for name in Batch.__slots__
    if name
    not in {
        "ends", "finish_at", "finish_ms", "finished", "last", "left", "order", "phases",
        "prefilled", "prefilling", "targets", "waiting",
    }
)  # fmt: skip
"""Attributes that are values, or are never changed: a copy takes them as they are."""
