"""The steps of a batch that decodes in lock-step, and how long they take.

It knows no rules: a rule set (predictor/rules) is a subclass that says who joins and when, and who
has to leave.
"""

from abc import ABC, abstractmethod

from pipeline.messages import EngineLimits
from predictor.batch import ROW_BITS, ROW_MASK, Batch
from predictor.queues import Queues


class Lockstep(Batch, ABC):
    """One engine on its way; subclasses are the rule sets."""

    __slots__ = ()

    @classmethod
    @abstractmethod
    def in_order(cls, limits: EngineLimits, queues: Queues) -> bool:
        """Whether the running list is as by the rules; if not, the plain scheduler has to go on."""

    @abstractmethod
    def advance(self) -> None:
        """On to the next event and past it, by the rules. Somebody must be there."""

    def may_open(self) -> bool:
        """Whether `advance` may set `opened` now; True where a rule set does not know better."""
        return True

    def run(self, *, until_done: bool = False) -> None:
        """On until nobody is left, the watched row has finished, or `events_left` is used up."""
        while self.events_left > 0 and self.busy and not (until_done and self.done):
            self.advance()

    def decode(self, k: int, need: int) -> None:
        """k steps that only decode and take `need` blocks; nobody leaves before the last."""
        n, context = self.decoding, self.context
        self.free = free = self.free - need
        if free < self.free_min:
            self.free_min = free
        self.now += k * (
            self.base_ms + max(self.flat_ms, self.token_ms * n) + self.sequence_ms * n
        ) + self.context_ms * (k * context + n * (k * (k - 1) // 2))
        self.clock += k
        self.steps += k
        self.produced += k * n
        self.context = context + k * n
        self.events_left -= 1
        if not self.waiting:
            self.opened = True
        self.leave()

    def drain(self, spare: int) -> bool:
        """Decode from one finish to the next where nobody waits or prefills, until all or the
        watched row have finished, or a step would leave fewer than `spare` blocks. Whether it
        took any step.

        Half of a forecast's time goes here, so it works on locals, and counts blocks in its own
        way: at the clock c = q·size + slot the decoding ones hold

            n·q + (how many have a phase below slot) - Σ (finish_at - last) // size

        and `pool` is what would be free but for the first two terms.
        """
        free, n, size = self.free, self.decoding, self.block_size
        if free < spare or not n:
            return False
        ends, clock = self.ends, self.clock
        phases, last_of, finish_at = self.phases, self.last, self.finish_at
        base_ms, flat_ms, token_ms = self.base_ms, self.flat_ms, self.token_ms
        context_ms, sequence_ms = self.context_ms, self.sequence_ms
        finished, finish_ms, watched = self.finished, self.finish_ms, self.watched
        context, now, produced, free_min = self.context, self.now, self.produced, self.free_min
        pool = free + n * (clock // size) + sum(phases[: clock % size])
        started, events_left, head = clock, self.events_left, 0
        floor = max(free_min, spare)
        stop = -1
        """The clock at which the watched row finishes, once that is reached."""
        for entry in ends:
            due = entry >> ROW_BITS
            if due > clock:
                if clock == stop or events_left <= 0:
                    break
                blocks = n * (due // size)
                if pool - blocks - n < floor:  # at most n have a phase below the slot
                    free = pool - blocks - sum(phases[: due % size])
                    if free < spare:
                        break
                    if free < free_min:
                        free_min = floor = free
                k = due - clock
                more = k * n
                term = token_ms * n
                if term < flat_ms:
                    term = flat_ms
                now += k * (base_ms + term + sequence_ms * n) + context_ms * (
                    k * context + more * (k - 1) / 2
                )
                context += more
                produced += more
                clock = due
                events_left -= 1
            row = entry & ROW_MASK
            head += 1
            n -= 1
            last = last_of[row]
            context -= last
            age = due - last
            phases[age % size] -= 1
            pool -= age // size
            finish_at[row] = 0
            finished.append(row)
            finish_ms.append(now)
            if row == watched:
                stop = due
        del ends[:head]
        self.done = self.done or stop >= 0
        self.steps += clock - started
        self.decoding, self.context, self.now, self.clock = n, context, now, clock
        self.produced, self.events_left, self.free_min = produced, events_left, free_min
        self.free = pool - n * (clock // size) - sum(phases[: clock % size])
        return head > 0

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
        n, free = self.decoding, self.free
        if free < self.free_min:
            self.free_min = free
        term = self.token_ms * self.step_tokens
        self.now += (
            self.base_ms
            + (term if term > self.flat_ms else self.flat_ms)
            + self.prefill_ms * self.step_work
            + self.context_ms * self.step_read
            + self.sequence_ms * self.step_sequences
        )
        self.clock += 1
        self.steps += 1
        self.produced += n
        self.context += n
        self.events_left -= 1
        if opens:
            self.opened = True
        ends = self.ends
        if ends and ends[0] >> ROW_BITS <= self.clock:
            self.leave()
        self.join(joining)
