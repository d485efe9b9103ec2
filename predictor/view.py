"""What a predictor knows of its instance: the last ledger, and what is on its way to it.

Three layers, oldest knowledge first: the worker's published ledger, moved on by the time since it
came; what INBOX stored since (seen on `queued.<instance>`); what this predictor was asked about a
moment ago and may still be sent. The last one closes the gap between a probe and its dispatch: two
requests that arrive within one probe's time do not both see an idle instance.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from pipeline.messages import (
    Admission,
    Ended,
    EngineLimits,
    Probe,
    RequestState,
    StateSource,
    StateUpdate,
    StepTime,
)
from predictor.ageing import advanced
from predictor.coming import PROBED_EXPIRES_S, Coming
from predictor.fit import OnlineFit
from predictor.step_time import StepLoad

STATE_STALE_S = 5.0
ADVANCE_EVERY_S = 0.1
"""A state is moved on by whole such intervals, so that probes within one share what is computed."""
ADVANCE_MAX = 10
"""Intervals. A worker that was silent for five refreshes may stand still, its engine too."""
BOOTS_REMEMBERED_MAX = 16
ENDED_UNTAKEN_MAX = 4_096


class NoStateError(Exception):
    """Nothing is known of the instance, or nothing recent."""


@dataclass(frozen=True, slots=True)
class View:
    """The instance as one prediction sees it: its queues in order, those on their way behind."""

    instance: str
    boot: str
    version: int
    """The same for as long as `requests` are."""
    limits: EngineLimits
    step_time: StepTime
    requests: list[RequestState]
    age_ms: float
    admission: Admission | None = None


@dataclass
class InstanceView:
    """Keeps the layers. Owned by one event loop."""

    instance: str
    clock: Callable[[], float] = time.monotonic
    start_fit: Callable[[StateUpdate], OnlineFit] = field(default=lambda u: fresh_fit(u))
    """Where learning begins: at the profile, or at what was stored."""
    probed_expires_s: float = PROBED_EXPIRES_S
    """For how long a request that was asked about counts as on its way."""
    _update: StateUpdate | None = None
    _version: int = 0
    _fit: OnlineFit | None = None
    _fit_start: StepTime | None = None
    _updated_at: float = 0.0
    _present: list[RequestState] = field(default_factory=list)
    _admission: Admission | None = None
    """The ledger's requests, and what admission goes by, moved on."""
    _advances: int = 0
    """Intervals by which they are."""
    _untaken: list[Ended] = field(default_factory=list)
    _boots_over: deque[str] = field(default_factory=lambda: deque(maxlen=BOOTS_REMEMBERED_MAX))
    _coming: Coming = field(init=False)
    _decode: msgspec.msgpack.Decoder[StateUpdate] = field(
        default_factory=lambda: msgspec.msgpack.Decoder(StateUpdate)
    )

    def __post_init__(self) -> None:
        self._coming = Coming(lambda: self.clock(), self.probed_expires_s)

    def state(self, data: bytes) -> str | None:
        """A published ledger; returns why it was dropped, or None."""
        try:
            update = self._decode.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return "undecodable"
        return self.apply(update)

    def apply(self, update: StateUpdate) -> str | None:
        """The same of a decoded one."""
        if update.instance != self.instance:
            return "other_instance"
        last = self._update
        if last is not None and last.boot == update.boot and update.sequence <= last.sequence:
            return "out_of_order"
        if update.boot in self._boots_over:
            return "old_boot"
        if not _possible(update.limits):
            return "unphysical"
        try:
            self._learn(update)
        except ValueError:  # coefficients of no engine
            return "unphysical"
        told = set[Ended]()
        if last is not None and last.boot == update.boot:
            told.update(last.ended)
        elif last is not None:
            self._boots_over.append(last.boot)
            self._coming.inbox_gone()  # it was for the inbox of the boot before
        self._take(update, [ended for ended in update.ended if ended not in told])
        return None

    def _take(self, update: StateUpdate, ended: list[Ended]) -> None:
        """The ledger takes over what was on its way; `ended` are those not told before."""
        self._update = update
        self._version += 1
        self._updated_at = self.clock()
        self._present, self._admission, self._advances = update.requests, update.admission, 0
        self._untaken = [*self._untaken, *ended][-ENDED_UNTAKEN_MAX:]
        present = (state.key for state in update.requests)
        self._coming.arrived((*present, *(e.key for e in ended), *update.finished))

    def _learn(self, update: StateUpdate) -> None:
        """What the steps say of the engine's speed; it outlives a boot, not a change of profile."""
        if self._fit is None or self._fit_start != update.step_time:
            self._fit_start = update.step_time
            self._fit = self.start_fit(update)
        for step in update.steps:
            load = StepLoad(step.tokens, step.prefill_work, step.context_tokens, step.sequences)
            self._fit.observe(load, step.duration_ms)

    @property
    def source(self) -> StateSource | None:
        """Where the ledger in use comes from; None before the first."""
        return None if self._update is None else self._update.source

    def take_ended(self) -> list[Ended]:
        """Requests that ended since the last call, each once."""
        taken, self._untaken = self._untaken, []
        return taken

    @property
    def fit(self) -> OnlineFit | None:
        """What was learnt of the engine; None before the first update."""
        return self._fit

    @property
    def step_time(self) -> StepTime | None:
        """The engine's step time as learnt so far; None before the first update."""
        return None if self._fit is None else self._fit.coefficients

    def queued(self, headers: Mapping[str, str]) -> str | None:
        """INBOX stored a request for this instance; returns why it was dropped, or None."""
        return self._coming.queued(headers)

    def probed(self, probe: Probe) -> None:
        """A probe was answered: its request may be on its way in a moment."""
        self._coming.probed(probe)

    def view(self) -> View:
        """The instance now. Raises NoStateError."""
        update = self._update
        if update is None:
            raise NoStateError(f"no state of instance {self.instance} yet")
        age_s = self.clock() - self._updated_at
        if age_s > STATE_STALE_S:
            raise NoStateError(f"the state of {self.instance} is {age_s:.1f} s old")
        self._advance(update, age_s)
        known = {state.key for state in self._present}
        coming = self._coming.states()
        return View(
            instance=self.instance,
            boot=update.boot,
            version=self._version + self._coming.version,  # both only grow
            limits=update.limits,
            step_time=self.step_time or update.step_time,
            requests=[*self._present, *(s for s in coming if s.key not in known)],
            age_ms=age_s * 1000,
            admission=self._admission,
        )

    def _advance(self, update: StateUpdate, age_s: float) -> None:
        """Move the ledger on, if the state is old enough for that."""
        advances = min(ADVANCE_MAX, int(age_s / ADVANCE_EVERY_S))
        if advances <= self._advances:
            return
        self._advances = advances
        step_time = self.step_time or update.step_time
        elapsed_ms = advances * ADVANCE_EVERY_S * 1000
        # From the ledger itself each time: steps cut short at every interval would add up.
        now = advanced(update.limits, step_time, update.requests, elapsed_ms, update.admission)
        if now != (self._present, self._admission):
            self._present, self._admission = now
            self._version += 1


def fresh_fit(update: StateUpdate) -> OnlineFit:
    """Learning from the profile that the worker named."""
    return OnlineFit(update.step_time, tokens_max=update.limits.max_num_batched_tokens)


def _possible(limits: EngineLimits) -> bool:
    """An engine can have them: what divides is not zero, and every step can compute something."""
    counts = (
        limits.block_size,
        limits.kv_blocks,
        limits.max_num_seqs,
        limits.max_num_batched_tokens,
        limits.max_model_len,
    )
    return min(counts) >= 1 and 0 <= limits.watermark < 1
