"""What a predictor knows of its instance: the last ledger, and what is on its way to it.

Three layers, oldest knowledge first: the worker's published ledger; what INBOX stored since (seen
on `queued.<instance>`); what this predictor was asked about a moment ago and may still be sent.
The last one closes the gap between a probe and its dispatch: two requests that arrive within one
probe's time do not both see an idle instance.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from pipeline.messages import Admission, EngineLimits, Probe, RequestState, StateUpdate, StepTime
from pipeline.subjects import Header
from predictor.fit import OnlineFit
from predictor.step_time import StepLoad

QUEUED_EXPIRES_S = 30.0
"""Far above the time from inbox to ledger, unless the worker is full; a lost message ends here."""
PROBED_EXPIRES_S = 0.005
"""From a probe's answer to the echo of its dispatch takes about 3 ms; then it went elsewhere.
Longer is worse than not at all: an instance that is probed often and loses would look busy."""
STATE_STALE_S = 5.0
ON_THEIR_WAY_MAX = 4_096


class NoStateError(Exception):
    """Nothing is known of the instance, or nothing recent."""


@dataclass(frozen=True, slots=True)
class View:
    """The instance as one prediction sees it: its queues in order, those on their way behind."""

    instance: str
    boot: str
    version: int
    """The same for as long as nothing but time has changed."""
    limits: EngineLimits
    step_time: StepTime
    requests: list[RequestState]
    age_ms: float
    admission: Admission | None = None


@dataclass(slots=True)
class _Expected:
    state: RequestState
    until: float


@dataclass
class InstanceView:
    """Keeps the layers. Owned by one event loop."""

    instance: str
    clock: Callable[[], float] = time.monotonic
    start_fit: Callable[[StateUpdate], OnlineFit] = field(default=lambda u: fresh_fit(u))
    """Where learning begins: at the profile, or at what was stored."""
    _update: StateUpdate | None = None
    _version: int = 0
    _fit: OnlineFit | None = None
    _fit_start: StepTime | None = None
    _updated_at: float = 0.0
    _queued: dict[str, _Expected] = field(default_factory=dict)
    _probed: dict[str, _Expected] = field(default_factory=dict)
    _decode: msgspec.msgpack.Decoder[StateUpdate] = field(
        default_factory=lambda: msgspec.msgpack.Decoder(StateUpdate)
    )

    def state(self, data: bytes) -> str | None:
        """A published ledger; returns why it was dropped, or None."""
        try:
            update = self._decode.decode(data)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return "undecodable"
        return self.apply(update)

    def apply(self, update: StateUpdate) -> str | None:
        """The same of a decoded one."""
        if update.instance != self.instance:
            return "other_instance"
        last = self._update
        if last is not None and last.boot == update.boot and update.sequence <= last.sequence:
            return "out_of_order"
        try:
            self._learn(update)
        except ValueError:  # coefficients of no engine
            return "unphysical"
        if last is not None and last.boot != update.boot:
            self._queued.clear()  # it was for the inbox of the boot before
        self._update = update
        self._version += 1
        self._updated_at = self.clock()
        for state in update.requests:
            self._queued.pop(state.key, None)
        for key in update.finished:
            self._queued.pop(key, None)
        return None

    def _learn(self, update: StateUpdate) -> None:
        """What the steps say of the engine's speed; it outlives a boot, not a change of profile."""
        if self._fit is None or self._fit_start != update.step_time:
            self._fit_start = update.step_time
            self._fit = self.start_fit(update)
        for step in update.steps:
            load = StepLoad(step.tokens, step.prefill_work, step.context_tokens, step.sequences)
            self._fit.observe(load, step.duration_ms)

    def finished(self) -> list[str]:
        """Keys that the last update said had ended lately; they come in several updates."""
        return [] if self._update is None else self._update.finished

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
        try:
            key = headers[Header.REQUEST]
            prompt_tokens = int(headers[Header.PROMPT_TOKENS])
            max_tokens = int(headers[Header.MAX_TOKENS])
            p10, p50, p90 = (float(part) for part in headers[Header.ESTIMATE].split(","))
        except (KeyError, ValueError):
            return "undecodable"
        self._probed.pop(key, None)
        if len(self._queued) >= ON_THEIR_WAY_MAX:
            self._drop_expired()
            if len(self._queued) >= ON_THEIR_WAY_MAX:
                return "too_many"
        self._version += 1
        self._queued[key] = _Expected(
            _waiting(key, prompt_tokens, max_tokens, (p10, p50, p90)),
            self.clock() + QUEUED_EXPIRES_S,
        )
        return None

    def view(self) -> View:
        """The instance now. Raises NoStateError."""
        update = self._update
        if update is None:
            raise NoStateError(f"no state of instance {self.instance} yet")
        age_s = self.clock() - self._updated_at
        if age_s > STATE_STALE_S:
            raise NoStateError(f"the state of {self.instance} is {age_s:.1f} s old")
        self._drop_expired()
        known = {state.key for state in update.requests}
        coming = [e.state for e in (*self._queued.values(), *self._probed.values())]
        return View(
            instance=self.instance,
            boot=update.boot,
            version=self._version,
            limits=update.limits,
            step_time=self.step_time or update.step_time,
            requests=[*update.requests, *(s for s in coming if s.key not in known)],
            age_ms=age_s * 1000,
            admission=update.admission,
        )

    def probed(self, probe: Probe) -> None:
        """A probe was answered: its request may be on its way in a moment."""
        if len(self._probed) >= ON_THEIR_WAY_MAX:
            self._drop_expired()
        estimate = probe.estimate
        self._version += 1
        self._probed[probe.key] = _Expected(
            _waiting(
                probe.key,
                probe.prompt_tokens,
                probe.max_tokens or 0,
                (estimate.p10, estimate.p50, estimate.p90),
            ),
            self.clock() + PROBED_EXPIRES_S,
        )

    def _drop_expired(self) -> None:
        now = self.clock()
        for layer in (self._queued, self._probed):
            for key in [key for key, expected in layer.items() if expected.until <= now]:
                del layer[key]
                self._version += 1


def fresh_fit(update: StateUpdate) -> OnlineFit:
    """Learning from the profile that the worker named."""
    return OnlineFit(update.step_time, tokens_max=update.limits.max_num_batched_tokens)


def _waiting(
    key: str, prompt_tokens: int, max_tokens: int, quantiles: tuple[float, float, float]
) -> RequestState:
    p10, p50, p90 = quantiles
    return RequestState(
        key=key,
        phase="waiting",
        prompt_tokens=prompt_tokens,
        computed_tokens=0,
        generated_tokens=0,
        max_tokens=max_tokens or 2**31,
        p10=p10,
        p50=p50,
        p90=p90,
    )
