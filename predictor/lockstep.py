"""The steps of a batch that decodes in lock-step: how long they take, and the record of them.

It knows no rules: a rule set (predictor/rules) is a subclass that says who joins and when, and who
has to leave.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from pipeline.messages import EngineLimits
from predictor.batch import Batch
from predictor.queues import Queues
from predictor.spans import Span

_NONE: list[int] = []
_new = tuple.__new__  # a third of what Span(...) costs, and a span is made at every event


class Lockstep(Batch, ABC):
    """One engine on its way; subclasses are the rule sets."""

    __slots__ = ()

    LAYS_OVER: ClassVar[bool] = True
    """A newcomer is the last of a mixed batch, as predictor/overlay.py takes it to be."""
    ALLOCATES_WHOLE: ClassVar[bool] = False
    """A prefill gets the blocks of its whole length at once."""
    WATERMARK_ALONE: ClassVar[bool] = False
    """The watermark counts in an empty engine too."""
    BLOCKS_SPARE: ClassVar[int] = 0
    """Free blocks beyond what a step takes with which nobody is preempted for sure."""

    @classmethod
    @abstractmethod
    def in_order(cls, limits: EngineLimits, queues: Queues) -> bool:
        """Whether the running list is as by the rules; if not, the plain scheduler has to go on."""

    @abstractmethod
    def advance(self) -> None:
        """On to the next event and past it, by the rules. Somebody must be there."""

    def decode(self, k: int, need: int) -> None:
        """k steps that only decode and take `need` blocks; nobody leaves before the last."""
        n, context, before = self.decoding, self.context, self.now
        free_first = free = self.free
        slot = self.clock % self.block_size
        opens = self.spans is not None and not self.waiting
        blocks = _NONE
        if need:
            free_first -= self.phases[slot]
            self.free = free = free - need
        if free < self.free_min:
            self.free_min = free
        if opens:
            blocks = self.phases[:]
        term = self.token_ms * n
        if term < self.flat_ms:
            term = self.flat_ms
        self.now = before + (
            k * (self.base_ms + term + self.sequence_ms * n)
            + self.context_ms * (k * context + n * (k * (k - 1) // 2))
        )
        self.clock += k
        self.steps += k
        self.produced += k * n
        self.context = context + k * n
        running = n + len(self.prefilling)
        self.leave()
        if self.spans is not None:
            self.spans.append(
                _new(Span, (
                    k, n, running, n, context, slot, blocks, opens, free_first, free,
                    self.free_min, self.preemptions, self.steps - k, before, self.now,
                    len(self.finished),
                ))
            )  # fmt: skip

    def load(self, tokens: int) -> None:
        """Begin the account of a single step, in which so many decode."""
        self.step_tokens = self.step_sequences = tokens
        self.step_read = self.context
        self.step_work = 0.0

    def add_chunk(self, computed: int, chunk: int) -> None:
        """A prefill chunk behind what is computed."""
        self.step_tokens += chunk
        self.step_sequences += 1
        self.step_work += chunk * (computed + chunk / 2)

    def step(self, joining: list[int], *, opens: bool) -> None:
        """Run the single step that `load` began and whose blocks are taken; `joining` have been
        prefilled with it. `opens`: a newcomer would be tried in it."""
        n, before, free = self.decoding, self.now, self.free
        if free < self.free_min:
            self.free_min = free
        term = self.token_ms * self.step_tokens
        self.now = before + (
            self.base_ms
            + (term if term > self.flat_ms else self.flat_ms)
            + self.prefill_ms * self.step_work
            + self.context_ms * self.step_read
            + self.sequence_ms * self.step_sequences
        )
        slot, context = self.clock % self.block_size, self.context
        running = n + len(self.prefilling) + len(joining)
        self.clock += 1
        self.steps += 1
        self.produced += n
        self.context = context + n
        self.leave()
        self.join(joining)
        if self.spans is not None:
            self.spans.append(
                _new(Span, (
                    1, self.step_tokens, running, n, context, slot, _NONE, opens, free, free,
                    self.free_min, self.preemptions, self.steps - 1, before, self.now,
                    len(self.finished),
                ))
            )  # fmt: skip
