"""vLLM V1's scheduler, step by step, over plain numbers.

The simulated engine and the predictor's simulation both run this one class. It knows no clock,
no randomness and no text: a step is a plan (who gets how many tokens), and whoever runs it says
when the plan is done.

The rules: the running list goes first, in its order, each taking what it lacks as far as the
step's token budget goes. Who needs a block when none is free preempts the last of the list, itself
if need be; a preempted request forgets what was computed, keeps what was generated, and goes to
the front of the waiting queue. A step that preempted admits nobody; otherwise the head of the
waiting queue is admitted as long as it fits, and nobody is tried behind one that does not.
"""

from collections import deque
from dataclasses import dataclass, field

from pipeline.errors import AstrolabeError
from pipeline.messages import Admission, EngineLimits
from predictor.queues import tokens_in_all
from predictor.step_time import StepLoad


class NeverFitsError(AstrolabeError):
    """Even alone in the engine the request would not fit within its limits."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One request in the scheduler's world; counts are tokens."""

    key: str
    prompt_tokens: int
    target_tokens: int
    """How many it will generate in all: the truth in an engine, a guess in a prediction."""
    computed: int = 0
    """KV entries that exist."""
    generated: int = 0
    preemptions: int = 0
    blocks: int = 0
    """Allocated to it."""
    priority: int = 0
    """Carried along only: the order is that of arrival."""
    tokens_max: int = 0
    """Most that it may generate; SGLang's admission asks."""

    @property
    def decoding(self) -> bool:
        """Only its newest token still lacks a KV entry."""
        return self.generated > 0 and self.computed == self.prompt_tokens + self.generated - 1


@dataclass(slots=True)
class StepPlan:
    """One step, decided but not yet run."""

    chunks: list[tuple[Sequence, int]] = field(default_factory=list)
    """Who computes how many tokens, in the order in which they were given."""
    preempted: list[str] = field(default_factory=list)
    load: StepLoad = field(default_factory=StepLoad)
    open: bool = False
    """One more request, behind all that wait, would have been tried."""


class Scheduler:
    """The queues and the block account of one engine. Alternate `step` and `complete`."""

    def __init__(self, limits: EngineLimits) -> None:
        self.limits = limits
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.blocks_free = limits.kv_blocks
        self.preemptions = 0
        """Since the start."""
        self._watermark_blocks = int(limits.watermark * limits.kv_blocks)
        self._sequences: dict[str, Sequence] = {}
        self._plan: StepPlan | None = None

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, key: str) -> bool:
        return key in self._sequences

    @property
    def admission(self) -> Admission | None:
        """What these rules carry from one step to the next beside the queues: nothing."""
        return None

    def resume(self, admission: Admission) -> None:
        """Go on from what another scheduler of the same rules carried."""

    @property
    def blocks_used(self) -> int:
        return self.limits.kv_blocks - self.blocks_free

    def room(self, prompt_tokens: int) -> int:
        """Most tokens that a request with this prompt can generate; below 1 it never fits."""
        return room(self.limits, prompt_tokens)

    def add(self, sequence: Sequence) -> None:
        """A new request, to the end of the waiting queue. Raises NeverFitsError."""
        self._enter(sequence)
        self.waiting.append(sequence)

    def restore(self, sequence: Sequence) -> None:
        """A request that already runs, to the end of the running list. Raises NeverFitsError.

        It is given the blocks of its computed tokens even if there are not that many: the next
        step then preempts.
        """
        self._enter(sequence)
        sequence.blocks = self._blocks(sequence.computed)
        self.blocks_free -= sequence.blocks
        self.running.append(sequence)

    def abort(self, key: str) -> bool:
        """Forget a request and free its blocks, in the middle of a step too; False if unknown."""
        sequence = self._sequences.pop(key, None)
        if sequence is None:
            return False
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self._free(sequence)
        if self._plan is not None:
            self._plan.chunks = [c for c in self._plan.chunks if c[0] is not sequence]
        return True

    def step(self) -> StepPlan:
        """Decide the next step. Allocates its blocks and carries out its preemptions."""
        plan = self._begin()
        self._continue_running(plan)
        if not plan.preempted:
            self._admit(plan)
            plan.open = not self.waiting
        plan.load.sequences = len(plan.chunks)
        return plan

    def complete(self, plan: StepPlan) -> list[tuple[Sequence, bool]]:
        """The step was run: those that got a token, each with whether that was its last.

        Finished ones are gone, and their blocks free, when this returns.
        """
        if plan is not self._plan:
            raise RuntimeError("this is not the step that is under way")
        self._plan = None
        grown: list[tuple[Sequence, bool]] = []
        any_finished = False
        for sequence, chunk in plan.chunks:
            sequence.computed = computed = sequence.computed + chunk
            generated = sequence.generated
            if computed == sequence.prompt_tokens + generated:
                sequence.generated = generated = generated + 1
                finished = generated >= sequence.target_tokens
                any_finished |= finished
                grown.append((sequence, finished))
        if any_finished:
            self._remove([sequence for sequence, finished in grown if finished])
        return grown

    def _begin(self) -> StepPlan:
        if self._plan is not None:
            raise RuntimeError("the step before is not complete")
        self._plan = StepPlan()
        return self._plan

    def _enter(self, sequence: Sequence) -> None:
        if sequence.key in self._sequences:
            raise ValueError(f"{sequence.key} is already in the scheduler")
        tokens = sequence.prompt_tokens + sequence.generated
        if sequence.prompt_tokens < 1 or not 0 <= sequence.computed < tokens:
            raise ValueError(f"{sequence.key}: no token left to compute")
        if sequence.generated >= sequence.target_tokens:
            raise ValueError(f"{sequence.key}: no token left to generate")
        room_tokens = self.room(sequence.prompt_tokens)
        if sequence.target_tokens > room_tokens:
            raise NeverFitsError(
                f"{sequence.key}: {sequence.prompt_tokens} prompt tokens leave room for "
                f"{max(0, room_tokens)}, not {sequence.target_tokens}"
            )
        self._sequences[sequence.key] = sequence

    def _continue_running(self, plan: StepPlan) -> None:
        budget = self.limits.max_num_batched_tokens
        block_size = self.limits.block_size
        chunks, load = plan.chunks, plan.load
        context_tokens = 0
        # Preemption cuts this very list, but only behind the one in hand, or ends the loop.
        for sequence in self.running:
            if budget == 0:
                break
            computed, generated = sequence.computed, sequence.generated
            lacking = sequence.prompt_tokens + generated - computed
            chunk = lacking if lacking <= budget else budget
            after = computed + chunk
            if after > sequence.blocks * block_size and not self._grow(sequence, after, plan):
                break
            budget -= chunk
            chunks.append((sequence, chunk))
            if lacking == 1 and generated:
                context_tokens += computed
            else:
                load.prefill_work += chunk * (computed + chunk / 2)
        load.context_tokens = context_tokens
        load.tokens = self.limits.max_num_batched_tokens - budget

    def _grow(self, sequence: Sequence, tokens: int, plan: StepPlan) -> bool:
        """Give it blocks for so many tokens, taking them from the end of the running list."""
        lacking = self._blocks(tokens) - sequence.blocks
        while self.blocks_free < lacking:
            victim = self.running.pop()
            self._preempt(victim, plan)
            self.waiting.appendleft(victim)
            if victim is sequence:
                return False
        self._allocate(sequence, lacking)
        return True

    def _preempt(self, victim: Sequence, plan: StepPlan) -> None:
        """Its blocks and what was computed are gone; the caller has taken it off the running
        list and says where it waits."""
        self._free(victim)
        victim.computed = 0
        victim.preemptions += 1
        self.preemptions += 1
        plan.preempted.append(victim.key)

    def _admit(self, plan: StepPlan) -> None:
        limits, load = self.limits, plan.load
        while self.waiting and len(self.running) < limits.max_num_seqs:
            sequence = self.waiting[0]
            lacking = sequence.prompt_tokens + sequence.generated
            chunk = min(lacking, limits.max_num_batched_tokens - load.tokens)
            if chunk == 0 or (chunk < lacking and not limits.chunked_prefill):
                return
            required = self._blocks(lacking if limits.reserve_full_isl else chunk)
            # The watermark would starve an engine in which nothing runs.
            kept_free = self._watermark_blocks if plan.chunks else 0
            if required + kept_free > self.blocks_free:
                return
            self.running.append(self.waiting.popleft())
            self._allocate(sequence, self._blocks(chunk))
            plan.chunks.append((sequence, chunk))
            load.tokens += chunk
            load.prefill_work += chunk * (chunk / 2)

    def _remove(self, finished: list[Sequence]) -> None:
        for sequence in finished:
            del self._sequences[sequence.key]
            self._free(sequence)
        self.running = [s for s in self.running if s.generated < s.target_tokens]

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size)

    def _allocate(self, sequence: Sequence, blocks: int) -> None:
        sequence.blocks += blocks
        self.blocks_free -= blocks

    def _free(self, sequence: Sequence) -> None:
        self.blocks_free += sequence.blocks
        sequence.blocks = 0


def room(limits: EngineLimits, prompt_tokens: int) -> int:
    """Most tokens that a request with this prompt can generate; below 1 it never fits."""
    return tokens_in_all(limits) - prompt_tokens
