"""vLLM V0 by events: what predictor/rules/vllm_v0_steps.py does step by step.

As long as more blocks are free than the decoding ones take, nobody is preempted and steps are
jumped over; at the edge each step is walked through.
"""

from pipeline.messages import EngineLimits
from predictor.mixed import MixedSteps
from predictor.queues import Queues


class V0Events(MixedSteps):
    """The running list is the decoding ones, then at most one unfinished prefill."""

    __slots__ = ()

    @classmethod
    def in_order(cls, limits: EngineLimits, queues: Queues) -> bool:
        # With more, the order in which the budget reaches them would have to be followed.
        running = len(queues.running)
        return running <= limits.max_num_batched_tokens and queues.decoding >= running - 1

    def prefill_blocks(self, row: int) -> int:
        return -(-self._length(row) // self.block_size)

    def may_open(self) -> bool:
        # A step that preempts may admit too, into the blocks of those that it preempted.
        return self._short() or super().may_open()

    def advance(self) -> None:
        if self.flow(1, whole=True, evicts=False):
            return
        if self.prefilling or self._short() or (self.waiting and self._head_fits()):
            self._mixed_step()
            return
        k = self.steps_to_finish()
        need = self.blocks_for(k)
        if need >= self.free:
            k = self.steps_with(self.free - 1)
            need = self.blocks_for(k)
        self.decode(k, need)

    def _short(self) -> bool:
        """Whether the next step preempts: nobody goes on without a free block."""
        need = self.phases[self.clock % self.block_size]
        return self.free < 1 or (need > 0 and need >= self.free)

    def _length(self, row: int) -> int:
        return self.last[row] + 1 - self.left[row]

    def _head_fits(self) -> bool:
        """Whether the next step would admit the head, if it preempts nobody."""
        n = self.decoding
        need = self.phases[self.clock % self.block_size]
        return n < self.limits.max_num_seqs and self._fits(self.waiting[0], n, self.free - need)

    def _fits(self, row: int, tokens: int, free: int) -> bool:
        limits = self.limits
        required = self.prefill_blocks(row) + self.watermark
        return tokens < limits.max_num_batched_tokens and required <= free

    def _mixed_step(self) -> None:
        """One step, with all that there can be in it."""
        preempted: list[int] = []
        need = self.phases[self.clock % self.block_size]
        if self.free > need:
            self.free -= need
        else:
            self._decode_short(preempted)
        self.load(self.decoding)
        joining: list[int] = []
        if self.prefilling:
            self._continue_prefill(joining, preempted)
        self._admit(joining)
        opens = not self.waiting
        self.waiting.extendleft(preempted)
        self.step(joining, opens=opens)

    def _decode_short(self, preempted: list[int]) -> None:
        """Each one needs a free block in its turn, whether it takes it or not. So the last ones go
        until one is free when the last that is left has its turn."""
        size, phases = self.block_size, self.phases
        slot = self.clock % size
        while self.decoding:
            row = self.last_decoding()
            takes = (self.finish_at[row] - self.last[row]) % size == slot
            if self.free - (phases[slot] - takes) >= 1:
                break
            preempted.append(self._evict_prefilling() if self.prefilling else self.evict_last())
        self.free -= phases[slot]

    def _evict_prefilling(self) -> int:
        row = self.prefilling.pop()
        self.free += self.prefill_blocks(row)
        self.preemptions += 1
        return row

    def _continue_prefill(self, joining: list[int], preempted: list[int]) -> None:
        (row,) = self.prefilling
        length, computed = self._length(row), self.prefilled[row]
        lacking = length - computed
        # Its last token alone, after a preemption, is no different from a decode.
        decodes = lacking == 1 and self.left[row] < self.targets[row]
        if self.free < 1 and (decodes or length % self.block_size):
            preempted.append(self._evict_prefilling())
            return
        chunk = min(lacking, self.limits.max_num_batched_tokens - self.step_tokens)
        if decodes:
            self.step_read += computed
            self.step_tokens += 1
            self.step_sequences += 1
        else:
            self.add_chunk(computed, chunk)
        self.prefilled[row] = computed + chunk
        if chunk == lacking:
            self.prefilling.pop()
            joining.append(row)

    def _admit(self, joining: list[int]) -> None:
        waiting = self.waiting
        places = self.limits.max_num_seqs - self.decoding - len(self.prefilling) - len(joining)
        while waiting and places > 0 and self._fits(waiting[0], self.step_tokens, self.free):
            row = waiting.popleft()
            places -= 1
            length = self._length(row)
            chunk = min(length, self.limits.max_num_batched_tokens - self.step_tokens)
            self.free -= -(-length // self.block_size)
            self.add_chunk(0, chunk)
            if chunk == length:
                joining.append(row)
            else:
                self.prefilling.append(row)
                self.prefilled[row] = chunk
