"""Virtual time: what happens next, in order."""

from collections.abc import Callable
from heapq import heappop, heappush

Action = Callable[[], None]


class Agenda:
    """A clock that jumps from one planned action to the next. Ties happen in the order planned."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._planned: list[tuple[float, int, Action]] = []
        self._number = 0

    def seconds(self) -> float:
        """The time, for whoever expects a monotonic clock."""
        return self.now_ms / 1000

    def at(self, at_ms: float, action: Action) -> None:
        """Plan it; raises ValueError for what lies in the past."""
        if at_ms < self.now_ms:
            raise ValueError(f"{at_ms} ms is over: it is {self.now_ms} ms")
        self._number += 1
        heappush(self._planned, (at_ms, self._number, action))

    def after(self, delay_ms: float, action: Action) -> None:
        """Plan it for `delay_ms` from now."""
        self.at(self.now_ms + delay_ms, action)

    def step(self) -> bool:
        """The next action; False if nothing is planned."""
        if not self._planned:
            return False
        self.now_ms, _, action = heappop(self._planned)
        action()
        return True
