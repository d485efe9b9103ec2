"""How much KV cache an instance has promised: heard on the bus, asked of nobody.

Whoever puts a request into an inbox says in the headers how long its prompt is and its answer is
expected to be, and every end is published; so the tokens in flight are a running sum. What was not
heard (requests from before this dispatcher came up) is counted by the heartbeat, and taken to be as
large as the others.
"""

from dataclasses import dataclass

from pipeline.messages import EngineLimits

TYPICAL_TOKENS = 512.0
"""Of a request of which nothing was heard, where nothing was heard of any other."""
KNOWN_MAX = 8_192
"""Of one instance."""


@dataclass(slots=True)
class _Known:
    tokens: float
    heard_at: float


class Commitments:
    """The requests in flight to one boot of an instance, with their tokens."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._sum = 0.0

    def add(self, key: str, tokens: float, now: float) -> None:
        """A request was stored for the instance; once is enough. `now` in s, on any clock."""
        if key in self._known:
            return
        if len(self._known) >= KNOWN_MAX:
            self.remove(next(iter(self._known)))
        self._known[key] = _Known(tokens, now)
        self._sum += tokens

    def remove(self, key: str) -> None:
        """It has ended, or its end was missed."""
        known = self._known.pop(key, None)
        if known is not None:
            self._sum -= known.tokens

    def reconcile(self, in_flight: int, heard_before: float) -> None:
        """A heartbeat: of those heard of before that time no more than `in_flight` can be left;
        ends that were missed leave the oldest too many."""
        settled = [key for key, known in self._known.items() if known.heard_at < heard_before]
        for key in settled[: max(0, len(settled) - in_flight)]:
            self.remove(key)

    def tokens(self, in_flight: int) -> float:
        """Of all requests in flight, those not heard of included."""
        count = len(self._known)
        mean = self._sum / count if count else TYPICAL_TOKENS
        return max(0.0, self._sum) + max(0, in_flight - count) * mean


def share_committed(tokens: float, in_flight: int, limits: EngineLimits) -> float:
    """How much of an instance is promised: the share of its KV cache that `tokens` fill.

    Where every place in its batch is taken too, at least its requests a place: one more waits for
    somebody's end, however much cache is left. Fewer requests than places are no measure of load:
    a fast instance with a large cache may well have most of them.
    """
    of_cache = tokens / max(1, limits.kv_blocks * limits.block_size)
    if in_flight < limits.max_num_seqs:
        return of_cache
    return max(of_cache, in_flight / limits.max_num_seqs)
