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

    def all_may_enter(self) -> bool:
        """Whether the batch has places and blocks for all that wait. True where unsure: who ends
        with the next step counts as leaving before it, and of the last one any part may do."""
        waiting, size = self.waiting, self.block_size
        if len(waiting) > self.limits.max_num_seqs - self.decoding - len(self.prefilling):
            return False
        free, last, left = self.free - 1, self.last, self.left
        for number in range(len(waiting) - 1):
            if free < 0:
                return False
            row = waiting[number]
            free -= -((left[row] - last[row] - 1) // size)
        return free >= 0

    def decode_on(self, places: int, wanted: int, spare: int = 0) -> None:
        """Decode, from one finish to the next, until fewer than `places` decode and the next step
        would leave `wanted` blocks free, the watched row has finished, or a step would leave
        fewer than `spare`. The next one must not.

        The heart of a forecast, so it works on locals, and counts blocks in its own way: at the
        clock c = q·size + r the decoding ones hold

            n·q + (how many have a phase below r) - Σ (finish_at - last) // size

        and `pool` is what would be free but for the first two terms.
        """
        ends, phases, size, cost = self.ends, self.phases, self.block_size, self.step_time
        last_of, finish_at, watched = self.last, self.finish_at, self.watched
        finished, finish_ms = self.finished, self.finish_ms
        base_ms, flat_ms, token_ms = cost.base_ms, cost.flat_ms, cost.token_ms
        context_ms, sequence_ms = cost.context_ms, cost.sequence_ms
        n, context, now, events_left = self.decoding, self.context, self.now, self.events_left
        clock, produced, free, free_min = self.clock, self.produced, self.free, self.free_min
        started = clock
        pool = free + n * (clock // size) + sum(phases[: clock % size])
        head, count = 0, len(ends)
        while head < count and events_left > 0:
            due = ends[head] >> ROW_BITS
            slot = due % size
            after = pool - n * (due // size) - sum(phases[:slot])
            k = due - clock
            if after < spare and after < free:
                break
            free = after
            if free < free_min:
                free_min = free
            term = token_ms * n
            if term < flat_ms:
                term = flat_ms
            more = k * n
            now += k * (base_ms + term + sequence_ms * n) + context_ms * (
                k * context + more * (k - 1) / 2
            )
            context += more
            produced += more
            clock = due
            events_left -= 1
            done = False
            behind = (due + 1) << ROW_BITS
            while head < count and ends[head] < behind:
                row = ends[head] & ROW_MASK
                head += 1
                last = last_of[row]
                finish_at[row] = 0
                n -= 1
                context -= last
                phases[(due - last) % size] -= 1
                pool -= (due - last) // size
                free -= -last // size
                finished.append(row)
                finish_ms.append(now)
                done |= row == watched
            if done:
                self.done = True
                break
            if n < places and free - phases[slot] >= wanted:
                break
        del ends[:head]
        self.steps += clock - started
        self.decoding, self.context, self.now, self.events_left = n, context, now, events_left
        self.clock, self.produced, self.free, self.free_min = clock, produced, free, free_min
        if clock == started and events_left > 0:
            self.decode(self.steps_with(free - spare))

    def decode(self, k: int) -> None:
        """k steps that only decode; nobody leaves before the last."""
        n, context, cost = self.decoding, self.context, self.step_time
        self.free = free = self.free - self.blocks_for(k)
        if free < self.free_min:
            self.free_min = free
        self.now += k * (
            cost.base_ms + max(cost.flat_ms, cost.token_ms * n) + cost.sequence_ms * n
        ) + cost.context_ms * (k * context + n * (k * (k - 1) // 2))
        self.clock += k
        self.steps += k
        self.produced += k * n
        self.context = context + k * n
        self.events_left -= 1
        self.leave()

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
        n, free, cost = self.decoding, self.free, self.step_time
        if free < self.free_min:
            self.free_min = free
        term = cost.token_ms * self.step_tokens
        self.now += (
            cost.base_ms
            + (term if term > cost.flat_ms else cost.flat_ms)
            + cost.prefill_ms * self.step_work
            + cost.context_ms * self.step_read
            + cost.sequence_ms * self.step_sequences
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
