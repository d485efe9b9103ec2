"""What a worker holds: every request with its estimate and how far it has come.

Built from what the worker itself saw (it took the request, the engine streamed tokens), corrected
by what the engine reports. The predictor's picture of the instance is this, published whole.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.messages import ENDED_REPORTED_MAX, DispatchedRequest, Ended, Phase, RequestState
from workers.engine import EngineStats, Progress

ENDED_REMEMBERED_S = 5.0
"""Told in every update meanwhile: as long as a predictor believes a state at all."""

Outcome = Literal["stop", "length", "cancelled", "failed", "handed_back"]


@dataclass(slots=True)
class Entry:
    """One request in hand. Instants are the ledger's clock, in seconds."""

    request: DispatchedRequest
    stored_at: float
    """When INBOX stored it."""
    waiting_at: float
    """When it was last seen in the engine's queue, or on its way there."""
    generated_tokens: int = 0
    cancelled: bool = False
    outcome: Outcome = "handed_back"
    """How it ended, once that is known."""
    first_token_at: float | None = None
    last_token_at: float | None = None


class Ledger:
    """All requests of one boot, in order of arrival. Owned by the worker's event loop."""

    def __init__(self, max_model_len: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._entries: dict[str, Entry] = {}
        self._max_model_len = max_model_len
        self._clock = clock
        self._ended: deque[tuple[float, Ended]] = deque(maxlen=ENDED_REPORTED_MAX)
        self.changed = asyncio.Event()
        """Set on every arrival and end; whoever publishes the state clears it."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def add(self, request: DispatchedRequest, *, inbox_ms: float = 0.0) -> Entry:
        """`inbox_ms` is how long it lay in the inbox. That is the difference of two machines'
        wall clocks, so it may be anything; below zero counts as nothing."""
        now = self._clock()
        stored_at = now - max(0.0, inbox_ms) / 1000
        entry = self._entries[request.key] = Entry(request, stored_at, waiting_at=now)
        self.changed.set()
        return entry

    def grew(self, entry: Entry, generated_tokens: int) -> None:
        """The engine has streamed so many tokens of it by now."""
        if generated_tokens <= entry.generated_tokens:
            return
        entry.generated_tokens = generated_tokens
        entry.last_token_at = self._clock()
        if entry.first_token_at is None:
            entry.first_token_at = entry.last_token_at

    def remove(self, key: str) -> None:
        """It ended, by its entry's outcome."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            now = self._clock()
            self._ended.append((now, _ended(entry, now)))
            self.changed.set()

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def keys(self) -> list[str]:
        return list(self._entries)

    def states(self, stats: EngineStats) -> list[RequestState]:
        """The ledger in the order of the engine's queues, corrected by its report. Takes note of
        who still waits."""
        exact = stats.progress
        ordered = [key for key in exact if key in self._entries]
        ordered += [key for key, entry in self._entries.items() if self._unseen(key, entry, exact)]
        inferred = self._inferred(ordered, stats) if not exact else {}
        states = [
            self._state(self._entries[key], exact.get(key) or inferred.get(key)) for key in ordered
        ]
        now = self._clock()
        for state in states:
            entry = self._entries[state.key]
            if state.phase == "waiting" and entry.first_token_at is None:
                entry.waiting_at = now
        return states

    def ended(self) -> list[Ended]:
        """Those that ended in the last seconds, oldest first."""
        before = self._clock() - ENDED_REMEMBERED_S
        while self._ended and self._ended[0][0] < before:
            self._ended.popleft()
        return [ended for _, ended in self._ended]

    @staticmethod
    def _unseen(key: str, entry: Entry, exact: Mapping[str, Progress]) -> bool:
        """Not in the engine's exact report: on its way in. One with tokens is on its way out."""
        return key not in exact and not (exact and entry.generated_tokens)

    def _inferred(self, keys: Sequence[str], stats: EngineStats) -> dict[str, Progress]:
        """Phases without exact state: a request with tokens decodes; of the others the oldest
        prefill, as many as the engine says run."""
        decoding = [key for key in keys if self._entries[key].generated_tokens]
        prefilling = max(0, stats.running - len(decoding))
        found: dict[str, Progress] = {}
        for key in keys:
            entry = self._entries[key]
            phase: Phase = "waiting"
            computed = 0
            if entry.generated_tokens:
                phase = "decoding"
                computed = entry.request.prompt_tokens + entry.generated_tokens - 1
            elif prefilling:
                phase = "prefilling"
                prefilling -= 1
            found[key] = Progress(phase, computed, entry.generated_tokens)
        return found

    def _state(self, entry: Entry, progress: Progress | None) -> RequestState:
        request = entry.request
        at = progress or Progress("waiting", 0, entry.generated_tokens)
        prompt_tokens = at.prompt_tokens or request.prompt_tokens
        room = max(1, self._max_model_len - prompt_tokens)
        return RequestState(
            key=request.key,
            phase=at.phase,
            prompt_tokens=prompt_tokens,
            computed_tokens=at.computed_tokens,
            generated_tokens=at.generated_tokens,
            max_tokens=min(request.max_tokens or room, room),
            p10=request.estimate.p10,
            p50=request.estimate.p50,
            p90=request.estimate.p90,
            priority=request.priority,
        )


def _ended(entry: Entry, now: float) -> Ended:
    first_at, last_at = entry.first_token_at, entry.last_token_at
    stored_at = entry.stored_at
    return Ended(
        key=entry.request.key,
        outcome=entry.outcome,
        waited_ms=(entry.waiting_at - stored_at) * 1000,
        ttft_ms=None if first_at is None else (first_at - stored_at) * 1000,
        e2e_ms=((now if last_at is None else last_at) - stored_at) * 1000,
    )
