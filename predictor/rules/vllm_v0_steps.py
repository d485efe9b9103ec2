"""vLLM V0's scheduler (0.7.2, chunked prefill), step by step, for comparison with the paper.

What differs from V1: a request goes on only if a block is free, whether it needs one or not; a
prefill is given the blocks of its whole length when it is admitted; the watermark counts at every
admission; a step that preempted goes on to admit, and those preempted wait from the next step on.
After a step those that decode come first, then the prefills that it finished, then the others;
whoever the budget did not reach moves to the front.
"""

from predictor.scheduler import Scheduler, Sequence, StepPlan


class V0Scheduler(Scheduler):
    """The same queues and account by the older rules."""

    def restore(self, sequence: Sequence) -> None:
        super().restore(sequence)
        if not sequence.decoding:
            self._allocate(sequence, self._blocks(_length(sequence)) - sequence.blocks)

    def step(self) -> StepPlan:
        plan = self._begin()
        preempted = self._continue(plan)
        self._admit(plan)
        plan.open = not self.waiting
        self.waiting.extendleft(preempted)
        plan.load.sequences = len(plan.chunks)
        return plan

    def _continue(self, plan: StepPlan) -> list[Sequence]:
        """Those that run go on, in their order; the ones that were preempted for it."""
        decoding: list[Sequence] = []
        finishing: list[Sequence] = []
        unfinished: list[Sequence] = []
        preempted: list[Sequence] = []
        queue = self.running
        place = 0
        while place < len(queue):
            budget = self.limits.max_num_batched_tokens - plan.load.tokens
            if budget == 0:
                break
            sequence = queue[place]
            place += 1
            decodes = sequence.decoding
            while self.blocks_free < self._touched(sequence):
                victim = queue.pop()
                self._preempt(victim, plan)
                preempted.append(victim)
                if victim is sequence:
                    break
            else:
                lacking = _length(sequence) - sequence.computed
                chunk = min(lacking, budget)
                self._schedule(sequence, chunk, plan, decodes=decodes)
                kind = decoding if decodes else finishing if chunk == lacking else unfinished
                kind.append(sequence)
        self.running = [*queue[place:], *decoding, *finishing, *unfinished]
        return preempted

    def _touched(self, sequence: Sequence) -> int:
        """Blocks that have to be free for it to go on: V0 counts the last one that it has as if
        it might have to be copied."""
        if sequence.decoding:
            return 1
        return 1 if _length(sequence) % self.limits.block_size else 0

    def _schedule(self, sequence: Sequence, chunk: int, plan: StepPlan, *, decodes: bool) -> None:
        needed = self._blocks(sequence.computed + chunk) - sequence.blocks
        if needed > 0:
            self._allocate(sequence, needed)
        plan.chunks.append((sequence, chunk))
        plan.load.tokens += chunk
        if decodes:
            plan.load.context_tokens += sequence.computed
        else:
            plan.load.prefill_work += chunk * (sequence.computed + chunk / 2)

    def _admit(self, plan: StepPlan) -> None:
        while self.waiting and len(self.running) < self.limits.max_num_seqs:
            sequence = self.waiting[0]
            length = _length(sequence)
            chunk = min(length, self.limits.max_num_batched_tokens - plan.load.tokens)
            required = self._blocks(length)
            if chunk == 0 or self.blocks_free - required < self._watermark_blocks:
                return
            self.running.append(self.waiting.popleft())
            self._allocate(sequence, required)
            self._schedule(sequence, chunk, plan, decodes=False)


def _length(sequence: Sequence) -> int:
    return sequence.prompt_tokens + sequence.generated
