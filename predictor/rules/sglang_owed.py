"""How many tokens the decoding requests may still generate, each counted up to a clip.

Of one that is below the clip it is one less with every step, of one above it always the clip. So
it is a sum, a count and a heap of those above, and no walk over the batch.
"""

from heapq import heappop, heappush

from predictor.batch import ROW_BITS, ROW_MASK


class OwedTokens:
    """Of one batch in lock-step; a row and the clock are the batch's."""

    __slots__ = ("_above", "_below", "_below_due", "_clip", "_heap")

    def __init__(self, clip: int) -> None:
        self._clip = clip
        self._below: dict[int, int] = {}
        """By row, the clock at which it would have generated all that it may."""
        self._below_due = 0
        """Their sum."""
        self._above: dict[int, int] = {}
        self._heap: list[int] = []
        """Those above, by when; entries of those that have left stay until they are met."""

    def add(self, row: int, due: int, clock: int) -> None:
        """It decodes from now on, and may until `due`."""
        if due - clock > self._clip:
            self._above[row] = due
            heappush(self._heap, due << ROW_BITS | row)
        else:
            self._below[row] = due
            self._below_due += due

    def remove(self, row: int) -> None:
        """It does not decode any more; nothing happens if it never did."""
        due = self._below.pop(row, None)
        if due is None:
            self._above.pop(row, None)
        else:
            self._below_due -= due

    def at(self, clock: int) -> int:
        """Σ min(due - clock, clip)."""
        heap, above = self._heap, self._above
        while heap and (heap[0] >> ROW_BITS) - clock <= self._clip:
            entry = heappop(heap)
            row, due = entry & ROW_MASK, entry >> ROW_BITS
            if above.get(row) == due:
                del above[row]
                self._below[row] = due
                self._below_due += due
        return self._below_due - clock * len(self._below) + self._clip * len(above)

    def copy(self) -> "OwedTokens":
        other = OwedTokens(self._clip)
        other._below, other._above = self._below.copy(), self._above.copy()
        other._below_due, other._heap = self._below_due, self._heap.copy()
        return other
