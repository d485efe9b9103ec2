"""SGLang's scheduler (0.5, first come first served), step by step.

A step is a prefill batch or a decode batch. Whenever somebody can be prefilled that is done, and
those that decode stand still meanwhile. One request's prefill may be cut at the chunk size; its
rest comes first in the next batch. If the head of the queue does not fit, the batch counts as full
and nobody is tried until somebody leaves.

If the next tokens of all that decode do not fit, those that have generated least are retracted,
among them the longest prompts first, and go to the end of the queue; what they have generated is
kept. One request always stays, and it always fits: none is let in that could not finish alone.
"""

from pipeline.messages import Admission, EngineLimits
from predictor.rules.sglang_admission import (
    NewTokenRatio,
    PrefillBudget,
    ratio_after_retraction,
)
from predictor.scheduler import NeverFitsError, Scheduler, Sequence, StepPlan


class SglangScheduler(Scheduler):
    """`running` is those that decode, then those whose prefill has begun."""

    def __init__(self, limits: EngineLimits) -> None:
        super().__init__(limits)
        self._ratio = NewTokenRatio(limits)
        self._batch_full = False
        self._prefilling: list[Sequence] = []
        self._decodes = False
        """The step under way is a decode step."""

    @property
    def admission(self) -> Admission:
        return Admission(self._ratio.now, self._batch_full)

    def resume(self, admission: Admission) -> None:
        self._ratio.set(admission.new_token_ratio)
        self._batch_full = admission.batch_full

    def add(self, sequence: Sequence) -> None:
        if not len(self):
            self._ratio.reset()
            self._batch_full = False
        super().add(sequence)

    def restore(self, sequence: Sequence) -> None:
        super().restore(sequence)
        if sequence.decoding:
            self.running.pop()
            self.running.insert(self._decoding, sequence)
        else:
            self._prefilling.append(sequence)

    def abort(self, key: str) -> bool:
        ran = len(self.running)
        known = super().abort(key)
        if len(self.running) < ran:
            self._prefilling = [s for s in self._prefilling if s.key != key]
            self._batch_full = False
        return known

    def step(self) -> StepPlan:
        plan = self._begin()
        if not self._decoding:
            self._batch_full = False
        if self._prefilling or (self.waiting and not self._batch_full):
            self._prefill(plan)
        self._decodes = not plan.chunks
        if self._decodes:
            self._decode(plan)
        plan.load.sequences = len(plan.chunks)
        return plan

    def complete(self, plan: StepPlan) -> list[tuple[Sequence, bool]]:
        decoded_before = self._decoding
        grown = super().complete(plan)
        if not self._decodes:
            done = {sequence.key for sequence, _ in grown}
            self._prefilling = [s for s in self._prefilling if s.key not in done]
            # A batch that was empty is replaced by the new one; a request that is still being
            # prefilled leaves it for the moment.
            if not decoded_before or self._prefilling:
                self._batch_full = False
        if any(finished for _, finished in grown):
            self._batch_full = False
        return grown

    @property
    def _decoding(self) -> int:
        """How many decode; they are the first of `running`."""
        return len(self.running) - len(self._prefilling)

    def _enter(self, sequence: Sequence) -> None:
        if sequence.tokens_max < sequence.target_tokens:
            raise ValueError(
                f"{sequence.key}: it will generate {sequence.target_tokens} tokens, "
                f"more than its tokens_max of {sequence.tokens_max}"
            )
        room_tokens = self.room(sequence.prompt_tokens)
        if sequence.tokens_max > room_tokens:
            raise NeverFitsError(
                f"{sequence.key}: {sequence.prompt_tokens} prompt tokens leave room for "
                f"{max(0, room_tokens)}, not for a tokens_max of {sequence.tokens_max}"
            )
        super()._enter(sequence)

    def _prefill(self, plan: StepPlan) -> None:
        limits = self.limits
        clip = limits.max_new_tokens_clip
        owed_tokens = sum(
            min(sequence.tokens_max - sequence.generated, clip)
            for sequence in self.running[: self._decoding]
        )
        budget = PrefillBudget(limits, self.blocks_free, owed_tokens, self._ratio.now)
        for sequence in self._prefilling:
            lacking = sequence.prompt_tokens + sequence.generated - sequence.computed
            chunk = budget.go_on(lacking, sequence.tokens_max)
            if chunk:
                self._schedule(sequence, chunk, plan)
            if chunk < lacking:
                return
        while self.waiting and not self._batch_full and not budget.spent:
            if len(self.running) >= limits.max_num_seqs:
                self._batch_full = True
                return
            sequence = self.waiting[0]
            chunk = budget.admit(
                sequence.prompt_tokens + sequence.generated,
                sequence.tokens_max - sequence.generated,
                sequence.tokens_max,
            )
            if chunk:
                self.waiting.popleft()
                self.running.append(sequence)
                self._prefilling.append(sequence)
                self._schedule(sequence, chunk, plan)
            self._batch_full = budget.full
            if not chunk:
                return

    def _schedule(self, sequence: Sequence, chunk: int, plan: StepPlan) -> None:
        computed = sequence.computed
        self._allocate(sequence, self._blocks(computed + chunk) - sequence.blocks)
        plan.chunks.append((sequence, chunk))
        plan.load.tokens += chunk
        plan.load.prefill_work += chunk * (computed + chunk / 2)

    def _decode(self, plan: StepPlan) -> None:
        """Nobody prefills now: all that run decode."""
        if self._blocks_lacking() > max(0, self.blocks_free):
            self._retract(plan)
        else:
            self._ratio.decay(1)
        for sequence in self.running:
            if sequence.computed % self.limits.block_size == 0:
                self._allocate(sequence, 1)
            plan.chunks.append((sequence, 1))
            plan.load.tokens += 1
            plan.load.context_tokens += sequence.computed

    def _blocks_lacking(self) -> int:
        size = self.limits.block_size
        return sum(sequence.computed % size == 0 for sequence in self.running)

    def _retract(self, plan: StepPlan) -> None:
        self.running.sort(key=lambda s: (s.generated, -s.prompt_tokens), reverse=True)
        while len(self.running) > 1:
            victim = self.running.pop()
            self._preempt(victim, plan)
            self.waiting.append(victim)
            if self._blocks_lacking() <= max(0, self.blocks_free):
                break
        self._batch_full = False
        self._ratio.set(
            ratio_after_retraction(
                self.limits,
                (sequence.generated for sequence in self.running),
                (sequence.tokens_max for sequence in self.running),
            )
        )
