"""vLLM V1 by events: what predictor/scheduler.py does step by step.

A step is more than a decode if somebody's prefill goes on, if the head of the waiting queue fits,
or if the blocks run out. Whether the head fits can only change for the better when somebody leaves
or joins, since the decoding ones take blocks and give none; so the steps between are jumped over.
"""

from pipeline.messages import EngineLimits
from predictor.mixed import MixedSteps
from predictor.queues import Queues


class VllmEvents(MixedSteps):
    """The running list is the decoding ones, then `prefilling`: only the last one admitted can be
    unfinished, and a state that is otherwise is stepped through before (predictor/settle.py)."""

    __slots__ = ()

    @classmethod
    def in_order(cls, limits: EngineLimits, queues: Queues) -> bool:
        return 0 <= queues.decoding <= limits.max_num_batched_tokens

    def advance(self) -> None:
        """On to the next event and past it. Somebody must be there."""
        limits = self.limits
        whole = limits.reserve_full_isl
        # Where a part of a victim's prompt is enough, the step that preempted it has to be told
        # from the next, which may admit it.
        if self.flow(0, whole=whole, evicts=whole):
            return
        n = self.decoding
        if n < limits.max_num_batched_tokens and (
            self.prefilling or (self.waiting and self._head_fits())
        ):
            self._mixed_step()
            return
        k = self.steps_to_finish()
        need = self.blocks_for(k)
        if need and need > self.free:
            k = self.steps_with(self.free)
            if k == 0:
                self._mixed_step()
                return
            need = self.blocks_for(k)
        self.decode(k, need)

    def _head_fits(self) -> bool:
        """Whether the next step would admit the head, given that nobody prefills."""
        n = self.decoding
        if n >= self.limits.max_num_seqs:
            return False
        need = self.phases[self.clock % self.block_size]
        if need and need > self.free:
            return False
        return self._fits(self.waiting[0], n, self.free - need) > 0

    def _fits(self, row: int, tokens: int, free: int) -> int:
        """The chunk that a step with so many tokens admits of it, 0 if it does not."""
        limits = self.limits
        length = self.last[row] + 1 - self.left[row]
        chunk = limits.max_num_batched_tokens - tokens
        if chunk >= length:
            chunk = length
        elif not limits.chunked_prefill:
            return 0
        required = -(-(length if limits.reserve_full_isl else chunk) // self.block_size)
        if tokens:
            required += self.watermark
        return chunk if required <= free else 0

    def _mixed_step(self) -> None:
        """One step, with all that there can be in it."""
        preemptions = self.preemptions
        need = self.phases[self.clock % self.block_size]
        if need and need > self.free:
            self._decode_short(need)
        else:
            self.free -= need
        self.load(self.decoding)
        joining: list[int] = []
        if self.prefilling:
            self._continue_prefills(joining)
        admits = self.preemptions == preemptions
        if admits and self.waiting:
            self._admit(joining)
        self.step(joining, opens=admits and not self.waiting)

    def _decode_short(self, need: int) -> None:
        """There are not enough blocks for this step's tokens. In the running list's order each
        one that needs a block takes it, if need be from the last of the list, or is the last: so
        the last ones go, until those before them have enough."""
        while self.prefilling and need > self.free:
            self._evict_prefilling()
        phases, slot = self.phases, self.clock % self.block_size
        while need and need > self.free:
            self._evict_decoding()
            need = phases[slot]
        self.free -= need

    def _evict_decoding(self) -> None:
        self.waiting.appendleft(self.evict_last())

    def _evict_prefilling(self) -> int:
        row = self.prefilling.pop()
        self.free += self.prefill_blocks(row)
        self.preemptions += 1
        self.waiting.appendleft(row)
        return row

    def _continue_prefills(self, joining: list[int]) -> None:
        budget, size = self.limits.max_num_batched_tokens, self.block_size
        prefilling = self.prefilling
        for row in prefilling:  # as above
            chunk = budget - self.step_tokens
            if chunk == 0:
                break
            computed = self.prefilled[row]
            lacking = self.last[row] + 1 - self.left[row] - computed
            chunk = min(chunk, lacking)
            need = -(-(computed + chunk) // size) - -(-computed // size)
            while need and need > self.free:
                if self._evict_prefilling() == row:
                    break
            else:
                self.free -= need
                if lacking == 1 and self.left[row] < self.targets[row]:
                    self.step_read += computed
                    self.step_tokens += 1
                    self.step_sequences += 1
                else:
                    self.add_chunk(computed, chunk)
                if chunk == lacking:
                    joining.append(row)
                else:
                    self.prefilled[row] = computed + chunk
        del prefilling[: len(joining)]

    def _admit(self, joining: list[int]) -> None:
        waiting, size = self.waiting, self.block_size
        places = self.limits.max_num_seqs - self.decoding - len(self.prefilling) - len(joining)
        while waiting and places > 0:
            row = waiting[0]
            chunk = self._fits(row, self.step_tokens, self.free)
            if chunk == 0:
                return
            waiting.popleft()
            places -= 1
            self.free -= -(-chunk // size)
            self.add_chunk(0, chunk)
            if chunk == self.last[row] + 1 - self.left[row]:
                joining.append(row)
            else:
                self.prefilling.append(row)
                self.prefilled[row] = chunk
