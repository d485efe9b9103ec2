"""Whom SGLang (0.5) lets into a prefill batch: the arithmetic, over plain numbers.

Admission looks ahead. Of the free tokens a share of what the decoding requests may still generate
is kept back, the new token ratio; what is left has to hold the newcomer's input, all that it may
generate, and a page. The ratio falls with every decode step, and is raised when it proves to have
been too low: when requests had to be retracted.
"""

from collections.abc import Iterable

from pipeline.messages import EngineLimits

RATIO_START = 0.7
RATIO_LEAST = 0.14
"""Of the start."""


def token_ratios(schedule_conservativeness: float) -> tuple[float, float]:
    """`new_token_ratio_start` and `_min` of an engine with this setting."""
    start = min(1.0, RATIO_START * schedule_conservativeness)
    return start, RATIO_LEAST * start


class NewTokenRatio:
    """max(least, start - n·decay) after n decode steps since the start, the last retraction, or
    the moment when the engine was idle."""

    __slots__ = ("_decay", "_from", "_least", "_start", "_steps")

    def __init__(self, limits: EngineLimits) -> None:
        self._start, self._least = limits.new_token_ratio_start, limits.new_token_ratio_min
        self._decay = (self._start - self._least) / limits.new_token_ratio_decay_steps
        self._from, self._steps = self._start, 0

    @property
    def now(self) -> float:
        if not self._steps:
            return self._from  # after a retraction it may be below the least, until it decays
        return max(self._least, self._from - self._steps * self._decay)

    def decay(self, steps: int) -> None:
        """So many steps decoded."""
        self._steps += steps

    def reset(self) -> None:
        """The engine is idle."""
        self.set(self._start)

    def set(self, ratio: float) -> None:
        self._from, self._steps = ratio, 0

    def copy(self) -> "NewTokenRatio":
        other = object.__new__(NewTokenRatio)
        for name in NewTokenRatio.__slots__:
            setattr(other, name, getattr(self, name))
        return other


def ratio_after_retraction(
    limits: EngineLimits, generated: Iterable[int], tokens_max: Iterable[int]
) -> float:
    """From those that stayed: what they have generated, and `retract_decode_steps` more each, as a
    share of all that they might generate."""
    so_far = 0
    for tokens in generated:
        so_far += tokens + limits.retract_decode_steps
    return min(1.0, so_far / (sum(tokens_max) + 1))


class PrefillBudget:
    """What one prefill batch may still take. Everything is charged in whole pages, and a page more
    for each request."""

    __slots__ = ("_chunk_left", "_clip", "_input_left", "_remaining", "_size", "_taken", "full")

    def __init__(
        self, limits: EngineLimits, free_blocks: int, owed_tokens: int, ratio: float
    ) -> None:
        """`owed_tokens` is Σ min(tokens that it may still generate, clip) of those that decode."""
        self._size, self._clip = limits.block_size, limits.max_new_tokens_clip
        self._remaining = free_blocks * self._size - ratio * owed_tokens
        self._chunk_left = limits.max_num_batched_tokens if limits.chunked_prefill else None
        self._input_left = limits.max_prefill_tokens
        self._taken = False
        self.full = False
        """The last one asked about did not fit, or left nothing to look ahead into."""

    @property
    def spent(self) -> bool:
        """The batch is as large as it may be. Of an engine that is out of memory it is not said:
        the next one has to find that out, and marks the batch as full."""
        if self._remaining <= 0:
            return False
        return self._input_left <= 0 or (self._chunk_left is not None and self._chunk_left <= 0)

    def go_on(self, lacking: int, tokens_max: int) -> int:
        """Tokens for one whose prefill has begun: always some, as long as the chunk allows."""
        chunk = lacking
        if self._chunk_left is not None:
            if self._chunk_left <= 0:
                return 0
            fits = min(self._chunk_left, int(self._remaining))
            chunk = min(lacking, fits if fits > 0 else self._chunk_left)
        self._charge(chunk, min(tokens_max, self._clip) if chunk == lacking else 0)
        return chunk

    def admit(self, lacking: int, tokens_left: int, tokens_max: int) -> int:
        """Tokens for the head of the queue, 0 if it has to wait.

        `tokens_left` is what it may still generate: less than `tokens_max` if it was retracted.
        """
        size, chunk_left = self._size, self._chunk_left
        if lacking + min(tokens_left, self._clip) + size >= self._remaining:
            self.full = True
            return 0
        paged = -(-lacking // size) * size
        chunk, reserve = lacking, min(tokens_max, self._clip)
        if chunk_left is None:
            if self._taken and paged >= self._input_left:
                return 0
        elif paged > chunk_left:
            chunk, reserve = chunk_left // size * size, 0
            if chunk == 0:
                return 0
        self._charge(chunk, reserve)
        self.full = self._remaining <= 0
        return chunk

    def _charge(self, chunk: int, reserve: int) -> None:
        self._taken = True
        paged = -(-chunk // self._size) * self._size
        self._remaining -= paged + self._size + reserve
        self._input_left -= paged
        if self._chunk_left is not None:
            self._chunk_left -= paged
