"""SGLang by events: what predictor/rules/sglang_steps.py does step by step.

While they decode nobody is tried: either nobody waits, or the batch counts as full until somebody
leaves, however far the new token ratio falls meanwhile. So what decodes is jumped over to the next
that finishes, or to where the blocks run out. Prefill batches are walked through, and the clock of
those that decode stands still.
"""

from typing import Self

from pipeline.messages import EngineLimits, StepTime
from predictor.lockstep import Lockstep
from predictor.queues import Newcomer, Queues
from predictor.rules.sglang_admission import (
    NewTokenRatio,
    PrefillBudget,
    ratio_after_retraction,
)
from predictor.rules.sglang_owed import OwedTokens


class SglangEvents(Lockstep):
    """`order` is the decode batch; of `prefilling` only the last can have been cut, unless a
    ledger says otherwise."""

    __slots__ = ("batch_full", "behind", "owed", "ratio", "tokens_max")

    def __init__(self, limits: EngineLimits, step_time: StepTime, queues: Queues) -> None:
        super().__init__(limits, step_time, queues)
        self.tokens_max = queues.tokens_max
        self.ratio = NewTokenRatio(limits)
        self.batch_full = False
        if queues.admission is not None:
            self.ratio.set(queues.admission.new_token_ratio)
            self.batch_full = queues.admission.batch_full
        self.owed = OwedTokens(limits.max_new_tokens_clip)
        self._owe(self.order)
        self.behind = 0
        """How many at the end of the queue were retracted since the start: they are behind a
        newcomer."""

    @classmethod
    def in_order(cls, limits: EngineLimits, queues: Queues) -> bool:  # noqa: ARG003
        return True  # any ledger will do: the queues are sorted into the two when they are read

    def copy(self) -> Self:
        other = super().copy()
        other.tokens_max = self.tokens_max.copy()
        other.ratio, other.owed = self.ratio.copy(), self.owed.copy()
        other.batch_full, other.behind = self.batch_full, self.behind
        return other

    def append(self, asked: Newcomer) -> int:
        row = super().append(asked)
        self.tokens_max.append(asked.tokens_max)
        self.waiting.pop()
        self.waiting.insert(len(self.waiting) - self.behind, row)
        return row

    def may_open(self) -> bool:
        # Only if all that were there before a newcomer can be admitted in one step.
        places = self.limits.max_num_seqs - self.decoding - len(self.prefilling)
        full = self.batch_full and self.decoding > 0
        return not full and len(self.waiting) - self.behind <= places

    def advance(self) -> None:
        if not self.decoding:
            self.batch_full = False
        if self.prefilling or (self.waiting and not self.batch_full):
            joining = self._prefill()
            if self.step_tokens:
                self._prefill_step(joining)
                return
        self._decode_steps()

    # ------------------------------------------------------------------ prefill

    def _prefill(self) -> list[int]:
        """Put a batch together, and give it its blocks. Those whose prefill it completes."""
        self.step_tokens = self.step_sequences = 0
        self.step_work = 0.0
        joining: list[int] = []
        budget = PrefillBudget(self.limits, self.free, self.owed.at(self.clock), self.ratio.now)
        if self._go_on(budget, joining):
            self._admit(budget, joining)
        return joining

    def _go_on(self, budget: PrefillBudget, joining: list[int]) -> bool:
        """Those whose prefill has begun; whether it is now complete for all."""
        prefilling = self.prefilling
        for row in prefilling:
            computed = self.prefilled[row]
            lacking = self.last[row] + 1 - self.left[row] - computed
            chunk = budget.go_on(lacking, self.tokens_max[row])
            if chunk:
                self._take(computed, chunk)
            if chunk < lacking:
                self.prefilled[row] = computed + chunk
                del prefilling[: len(joining)]
                return False
            joining.append(row)
        prefilling.clear()
        return True

    def _admit(self, budget: PrefillBudget, joining: list[int]) -> None:
        waiting = self.waiting
        places = self.limits.max_num_seqs - self.decoding - len(joining)
        while waiting and not self.batch_full and not budget.spent:
            if places <= 0:
                self.batch_full = True
                break
            row = waiting[0]
            left, tokens_max = self.left[row], self.tokens_max[row]
            length = self.last[row] + 1 - left
            chunk = budget.admit(length, tokens_max - self.targets[row] + left, tokens_max)
            if chunk:
                waiting.popleft()
                places -= 1
                self._take(0, chunk)
                if chunk == length:
                    joining.append(row)
                else:
                    self.prefilling.append(row)
                    self.prefilled[row] = chunk
            self.batch_full = budget.full
            if not chunk:
                break
        self.behind = min(self.behind, len(waiting))

    def _take(self, computed: int, chunk: int) -> None:
        size = self.block_size
        self.free -= -(-(computed + chunk) // size) - -(-computed // size)
        self.add_chunk(computed, chunk)

    def _prefill_step(self, joining: list[int]) -> None:
        """Run the batch; those that decode stand still."""
        decoding, gone = self.decoding, len(self.finished)
        self.free_min = min(self.free_min, self.free)
        self.now += (
            self.base_ms
            + max(self.flat_ms, self.token_ms * self.step_tokens)
            + self.prefill_ms * self.step_work
            + self.sequence_ms * self.step_sequences
        )
        self.steps += 1
        self.events_left -= 1
        if len(self.waiting) <= self.behind:
            self.opened = True
        self.join(joining)
        self._owe([row for row in joining if self.finish_at[row]])
        # A batch that was empty is replaced by the new one; a request that is still being
        # prefilled leaves it for the moment.
        if not decoding or self.prefilling or len(self.finished) > gone:
            self.batch_full = False

    # ------------------------------------------------------------------ decode

    def _decode_steps(self) -> None:
        clock, gone = self.clock, len(self.finished)
        if self.waiting or not self.drain(0):
            k = self.steps_to_finish()
            need = self.blocks_for(k)
            if need and need > self.free:
                k = self.steps_with(self.free)
                if k == 0:
                    self._retract()
                    return
                need = self.blocks_for(k)
            self.decode(k, need)
        self.ratio.decay(self.clock - clock)
        self._left(gone)

    def _left(self, gone: int) -> None:
        """Those that have finished after the first `gone` do not decode any more."""
        if len(self.finished) > gone:
            self.batch_full = False
            for row in self.finished[gone:]:
                self.owed.remove(row)

    def _retract(self) -> None:
        """There are not enough blocks for this step's tokens: some go, the others take it."""
        clock, finish_at, last, targets = self.clock, self.finish_at, self.last, self.targets
        slot = clock % self.block_size
        order = self.compact()
        # The most generated first, then the shortest prompts.
        order.sort(
            key=lambda row: (targets[row] - finish_at[row], targets[row] - last[row]), reverse=True
        )
        retracted = []
        while len(order) > 1:
            row = self.evict_last()
            self.owed.remove(row)
            retracted.append(row)
            if self.phases[slot] <= max(0, self.free):
                break
        self.batch_full = False
        self.ratio.set(
            ratio_after_retraction(
                self.limits,
                (targets[row] - finish_at[row] + clock for row in order),
                (self.tokens_max[row] for row in order),
            )
        )
        gone = len(self.finished)
        self.decode(1, self.phases[slot])
        self._left(gone)
        self.waiting.extend(retracted)
        self.behind += len(retracted)

    def _owe(self, rows: list[int]) -> None:
        for row in rows:
            due = self.finish_at[row] + self.tokens_max[row] - self.targets[row]
            self.owed.add(row, due, self.clock)
