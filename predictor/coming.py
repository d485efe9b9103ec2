"""What is on its way to an instance: stored in its inbox, or asked about a moment ago.

An entry leaves when the worker's ledger names it, or when its time is up: the message was lost, or
the request went elsewhere.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pipeline.messages import Probe, RequestState
from pipeline.queued import Queued, queued_of, read_queued

QUEUED_EXPIRES_S = 30.0
"""Far above the time from inbox to ledger, unless the worker is full; a lost message ends here."""
PROBED_EXPIRES_S = 0.005
"""From a probe's answer to the echo of its dispatch takes about 3 ms; then it went elsewhere.
Longer is worse than not at all: an instance that is probed often and loses would look busy."""
ON_THEIR_WAY_MAX = 4_096
"""In each of the two layers."""


@dataclass(slots=True)
class _Expected:
    state: RequestState
    until: float


@dataclass
class Coming:
    """The two layers. Owned by one event loop."""

    clock: Callable[[], float]
    probed_expires_s: float = PROBED_EXPIRES_S
    version: int = 0
    """Grows with every change."""
    _queued: dict[str, _Expected] = field(default_factory=dict)
    _probed: dict[str, _Expected] = field(default_factory=dict)

    def queued(self, headers: Mapping[str, str]) -> str | None:
        """INBOX stored a request for this instance; returns why it was dropped, or None."""
        queued = read_queued(headers)
        if queued is None:
            return "undecodable"
        if not self._room(self._queued):
            return "too_many"
        self.version += 1
        self._probed.pop(queued.key, None)
        self._queued[queued.key] = _Expected(
            _waiting(queued),
            self.clock() + QUEUED_EXPIRES_S,
        )
        return None

    def probed(self, probe: Probe) -> None:
        """A probe was answered: its request may be on its way in a moment."""
        if not self._room(self._probed):
            return  # more than any bus brings in that time
        self.version += 1
        self._probed[probe.key] = _Expected(
            _waiting(queued_of(probe)), self.clock() + self.probed_expires_s
        )

    def arrived(self, keys: Iterable[str]) -> None:
        """The ledger has them, or has had them."""
        self.version += 1
        for key in keys:
            self._queued.pop(key, None)
            self._probed.pop(key, None)

    def inbox_gone(self) -> None:
        """The instance has another boot, and that another inbox."""
        self.version += 1
        self._queued.clear()

    def states(self) -> list[RequestState]:
        """All of them now, in the order in which they will stand behind the ledger's."""
        self._drop_expired()
        return [coming.state for coming in (*self._queued.values(), *self._probed.values())]

    def _room(self, layer: dict[str, _Expected]) -> bool:
        if len(layer) >= ON_THEIR_WAY_MAX:
            self._drop_expired()
        return len(layer) < ON_THEIR_WAY_MAX

    def _drop_expired(self) -> None:
        now = self.clock()
        for layer in (self._queued, self._probed):
            for key in [key for key, expected in layer.items() if expected.until <= now]:
                del layer[key]
                self.version += 1


def _waiting(queued: Queued) -> RequestState:
    return RequestState(
        key=queued.key,
        phase="waiting",
        prompt_tokens=queued.prompt_tokens,
        computed_tokens=0,
        generated_tokens=0,
        max_tokens=queued.max_tokens or 2**31,
        p10=queued.p10,
        p50=queued.p50,
        p90=queued.p90,
    )
