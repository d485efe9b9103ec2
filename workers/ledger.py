"""What a worker holds: every request with its estimate and how far it has come.

Built from what the worker itself saw (it took the request, the engine streamed tokens), corrected
by what the engine reports. The predictor's picture of the instance is this, published whole.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.messages import DispatchedRequest, Phase, RequestState
from workers.engine import EngineStats, Progress

FINISHED_REMEMBERED_MAX = 256


@dataclass(slots=True)
class Entry:
    """One request in hand."""

    request: DispatchedRequest
    generated_tokens: int = 0
    cancelled: bool = False


class Ledger:
    """All requests of one boot, in order of arrival. Owned by the worker's event loop."""

    def __init__(self, max_model_len: int) -> None:
        self._entries: dict[str, Entry] = {}
        self._max_model_len = max_model_len
        self._finished: deque[str] = deque(maxlen=FINISHED_REMEMBERED_MAX)
        self.changed = asyncio.Event()
        """Set on every arrival and end; whoever publishes the state clears it."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def add(self, request: DispatchedRequest) -> Entry:
        entry = self._entries[request.key] = Entry(request)
        self.changed.set()
        return entry

    def remove(self, key: str) -> None:
        if self._entries.pop(key, None) is not None:
            self._finished.append(key)
            self.changed.set()

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def keys(self) -> list[str]:
        return list(self._entries)

    def states(self, stats: EngineStats) -> list[RequestState]:
        """The ledger in the order of the engine's queues, corrected by its report."""
        exact = stats.progress
        ordered = [key for key in exact if key in self._entries]
        ordered += [key for key, entry in self._entries.items() if self._unseen(key, entry, exact)]
        inferred = self._inferred(ordered, stats) if not exact else {}
        return [
            self._state(self._entries[key], exact.get(key) or inferred.get(key)) for key in ordered
        ]

    def finished(self) -> list[str]:
        """Keys that ended lately."""
        return list(self._finished)

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
        room = max(1, self._max_model_len - request.prompt_tokens)
        return RequestState(
            key=request.key,
            phase=at.phase,
            prompt_tokens=request.prompt_tokens,
            computed_tokens=at.computed_tokens,
            generated_tokens=at.generated_tokens,
            max_tokens=min(request.max_tokens or room, room),
            p10=request.estimate.p10,
            p50=request.estimate.p50,
            p90=request.estimate.p90,
            priority=request.priority,
        )
