"""The common run of an engine whose steps mix decodes with prefills, in one loop.

Between finishes the batch decodes; whoever leaves makes room for the next of the queue, whose whole
prompt goes into one step; where the blocks run out the last of the running list makes room. That is
what nearly all of a forecast consists of, and here the rule sets agree. What is rarer (prompts in
several chunks, states that do not add up) they do event by event.
"""

from bisect import bisect_left, insort
from itertools import islice

from predictor.batch import ROW_BITS, ROW_MASK
from predictor.lockstep import Lockstep


class MixedSteps(Lockstep):
    """One engine on its way; rule sets begin their `advance` with `flow`."""

    __slots__ = ()

    def may_open(self) -> bool:
        # It would have to admit all that wait. Only their places and blocks are counted, and of
        # the last one any part may do.
        waiting, size = self.waiting, self.block_size
        if len(waiting) > self.limits.max_num_seqs - self.decoding - len(self.prefilling):
            return False
        free, last, left = self.free - 1, self.last, self.left
        for row in islice(waiting, max(0, len(waiting) - 1)):
            if free < 0:
                return False
            free -= -((left[row] - last[row] - 1) // size)
        return free >= 0

    def flow(self, spare: int, *, whole: bool, evicts: bool) -> bool:  # noqa: C901
        """On for as long as the steps are of the common kind. Whether it took any.

        A step leaves `spare` blocks free, or somebody is preempted; with `evicts` that is done
        here, and admits nobody. `whole`: an admission is refused if its whole prompt does not
        fit. It ends before a step that would set `opened`, and with the event in which the watched
        row finishes or the queue is empty. It counts blocks as `drain` does, and is one piece for
        the same reason: here a call costs as much as what it would do.
        """
        size, free, ends = self.block_size, self.free, self.ends
        if self.prefilling or not ends or free < spare:
            return False
        if not self.waiting and self.drain(spare):
            return True
        limits, watched, opened = self.limits, self.watched, self.opened
        places, budget, watermark = (
            limits.max_num_seqs, limits.max_num_batched_tokens, self.watermark,
        )  # fmt: skip
        base_ms, flat_ms, token_ms = self.base_ms, self.flat_ms, self.token_ms
        context_ms, sequence_ms = self.context_ms, self.sequence_ms
        waiting, order, phases = self.waiting, self.order, self.phases
        last_of, left_of, finish_at = self.last, self.left, self.finish_at
        finished, finish_ms = self.finished, self.finish_ms
        n, context, now, clock = self.decoding, self.context, self.now, self.clock
        free_min, produced, events_left = self.free_min, self.produced, self.events_left
        started = clock
        slot = clock % size
        pool = free + n * (clock // size) + sum(phases[:slot])
        done = short = False
        joining: list[int] = []
        head = 0
        """Of `ends`; those before it have left."""
        while free >= spare and n and events_left > 0:
            # Who enters with the next step.
            tokens = n
            if waiting and n < places:
                room = free - phases[slot] - watermark
                work = 0
                for row in waiting:
                    length = last_of[row] + 1 - left_of[row]
                    fits = length <= room * size
                    if not fits and whole:
                        break
                    if tokens + length > budget:
                        tokens = -1  # it may be that a part of it is admitted
                        break
                    if not fits:
                        break
                    joining.append(row)
                    room += -length // size
                    tokens += length
                    work += length * length
                    if n + len(joining) == places:
                        break
                if tokens < 0:
                    break
                if not opened and len(joining) == len(waiting):
                    self.opens_next = True
                    break

            # That step, or all until somebody leaves or the blocks run out.
            if joining:
                k = 1
                free = room + watermark
                term = token_ms * tokens
                now += (
                    base_ms
                    + (term if term > flat_ms else flat_ms)
                    + self.prefill_ms * work / 2
                    + context_ms * context
                    + sequence_ms * (n + len(joining))
                )
            else:
                due = ends[head] >> ROW_BITS
                after = pool - n * (due // size) - sum(phases[: due % size])
                if after < spare:
                    short = True
                    after, due = free - spare, clock
                    if after >= n:
                        due += after // n * size
                        after %= n
                    while phases[slot] <= after:
                        after -= phases[slot]
                        due += 1
                        slot = due % size
                    after += spare
                free = after
                k = due - clock
                term = token_ms * n
                now += k * (
                    base_ms + (term if term > flat_ms else flat_ms) + sequence_ms * n
                ) + context_ms * k * (context + n * (k - 1) / 2)
            if k:
                if free < free_min:
                    free_min = free
                clock += k
                context += k * n
                produced += k * n
                events_left -= 1
            slot = clock % size

            if short:
                if not evicts:
                    break
                while phases[slot] > free and n > 1:
                    row = order.pop()
                    due = finish_at[row]
                    if not due:
                        continue  # it left before
                    last = last_of[row]
                    finish_at[row] = 0
                    left_of[row] = left = due - clock
                    n -= 1
                    context -= last - left
                    free -= (left - last) // size
                    phases[(due - last) % size] -= 1
                    pool -= (due - last) // size
                    del ends[bisect_left(ends, due << ROW_BITS | row, head)]
                    waiting.appendleft(row)
                    self.preemptions += 1
                if phases[slot] > free:
                    break  # alone, and still without enough
                short = False
                continue

            # Who leaves after it, and who joins.
            limit = (clock + 1) << ROW_BITS
            while n and ends[head] < limit:
                row = ends[head] & ROW_MASK
                head += 1
                n -= 1
                last = last_of[row]
                finish_at[row] = 0
                context -= last
                phases[(clock - last) % size] -= 1
                pool -= (clock - last) // size
                free -= -last // size
                finished.append(row)
                finish_ms.append(now)
                if row == watched:
                    done = True

            if joining:
                for row in joining:
                    waiting.popleft()
                    if row == watched and self.first_ms is None:
                        self.first_ms = now
                    produced += 1
                    left, last = left_of[row] - 1, last_of[row]
                    if left:
                        due = clock + left
                        n += 1
                        finish_at[row] = due
                        context += last - left
                        phases[(due - last) % size] += 1
                        pool += (due - last) // size
                        order.append(row)
                        insort(ends, due << ROW_BITS | row, head)
                    else:
                        free -= -last // size
                        finished.append(row)
                        finish_ms.append(now)
                        if row == watched:
                            done = True
                joining.clear()
                if not waiting:
                    break
            if done:
                break

        del ends[:head]
        self.steps += clock - started
        self.decoding, self.context, self.now, self.clock = n, context, now, clock
        self.free, self.free_min = free, free_min
        self.produced, self.events_left = produced, events_left
        self.done = self.done or done
        return clock > started
