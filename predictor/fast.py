"""The same forecasts as predictor/simulation.py, computed by events.

A newcomer at the end of the queue changes nothing until it is the first in line. What happens until
then is computed once for a state and shared by all its probes; from there on each goes its own way.
"""

from collections.abc import Sequence as SequenceOf

from pipeline.messages import Admission, EngineLimits, Probe, RequestState, StepTime
from predictor.forecast import Base, Forecast, Horizon, LazyTimes
from predictor.lengths import expected_total
from predictor.lockstep import Lockstep
from predictor.queues import ExpectedTotal, Newcomer, newcomer, resolve
from predictor.settle import settled

EVENTS_MAX = 20_000
"""Of the order of 50 ms of Python. Blocks that run out again and again can make very many."""


class Prepared:
    """One state of one instance, for any number of probes. Not for several threads at once."""

    def __init__(
        self,
        limits: EngineLimits,
        step_time: StepTime,
        requests: SequenceOf[RequestState],
        *,
        expected: ExpectedTotal = expected_total,
        events_max: int = EVENTS_MAX,
        admission: Admission | None = None,
    ) -> None:
        if events_max < 1:
            raise ValueError("events_max must be at least 1")
        self._limits, self._step_time, self._requests = limits, step_time, requests
        self._expected, self._events_max = expected, events_max
        self._admission = admission
        self._queues = resolve(limits, requests, expected=expected, admission=admission)
        engine = settled(limits, step_time, self._queues)
        engine.events_left = events_max
        self._settled_first = engine.opened
        """The ledger was out of order, and while that sorted itself out a newcomer would have been
        tried already: each has to be there from the start."""
        self._engine = engine if self._settled_first else _until_first_in_line(engine)
        self._alone: Lockstep | None = None
        """The engine at the end, if nobody comes."""

    def base(self) -> Base:
        """What happens if nobody comes."""
        engine = self._run_alone()
        return Base(
            finish_ms=LazyTimes(lambda: self._times(engine)),
            preemptions=engine.preemptions,
            kv_blocks_peak=self._limits.kv_blocks - engine.free_min,
            steps=engine.steps,
            extrapolated=engine.busy,
            never_fits=tuple(self._queues.never_fits),
        )

    def probe(self, probe: Probe, *, horizon: Horizon = "newcomer") -> Forecast:
        """What the newcomer would experience behind everybody. Raises PromptTooLong."""
        if probe.key in self._queues.keys:  # on its way here already, or asked about just now
            others = [state for state in self._requests if state.key != probe.key]
            return Prepared(
                self._limits,
                self._step_time,
                others,
                expected=self._expected,
                events_max=self._events_max,
                admission=self._admission,
            ).probe(probe, horizon=horizon)
        limits, asked = self._limits, newcomer(self._limits, probe, self._expected)
        engine = self._with(asked)
        engine.run(until_done=True)
        row = engine.watched
        ttft_ms, e2e_ms = self._extrapolated(engine, row)
        steps, preemptions, free_min = engine.steps, engine.preemptions, engine.free_min
        extrapolated = not engine.done
        others_delay_ms: float | None = None
        if horizon == "all":
            engine.run()
            alone = self._run_alone()
            if engine.busy:
                extrapolated = True
            elif not alone.busy:
                others_delay_ms = sum(engine.finish_ms) - e2e_ms - sum(alone.finish_ms)
        return Forecast(
            ttft_ms=ttft_ms,
            e2e_ms=e2e_ms,
            tpot_ms=(e2e_ms - ttft_ms) / max(1, asked.target - 1),
            preemptions=preemptions,
            kv_blocks_peak=limits.kv_blocks - free_min,
            steps=steps,
            extrapolated=extrapolated,
            finish_ms=LazyTimes(lambda: {**self._times(engine), asked.key: e2e_ms}),
            preemptions_horizon=engine.preemptions,
            kv_blocks_free_min=free_min,
            never_fits=tuple(self._queues.never_fits),
            horizon=horizon,
            others_delay_ms=others_delay_ms,
        )

    def _with(self, asked: Newcomer) -> Lockstep:
        """An engine of its own that the newcomer has come to."""
        if not self._settled_first:
            engine = self._engine.copy()
            engine.append(asked)
            return engine
        queues = self._queues.copy()
        row = queues.append(asked)
        engine = settled(self._limits, self._step_time, queues, watched=row)
        engine.events_left = self._events_max
        return engine

    def _run_alone(self) -> Lockstep:
        if self._alone is None:
            self._alone = self._engine.copy()
            self._alone.run()
        return self._alone

    def _times(self, engine: Lockstep) -> dict[str, float]:
        """When those present finish, by key."""
        keys = self._queues.keys
        times = zip(engine.finished, engine.finish_ms, strict=True)
        return {keys[row]: ms for row, ms in times if row < len(keys)}

    def _extrapolated(self, engine: Lockstep, row: int) -> tuple[float, float]:
        """TTFT and E2E; as predictor/simulation.py does where its bound comes first."""
        if engine.done and engine.first_ms is not None:
            return engine.first_ms, engine.now
        mean_ms = engine.now / engine.steps
        due = engine.finish_at[row]
        left = due - engine.clock if due else engine.left[row]
        if engine.first_ms is not None:
            return engine.first_ms, engine.now + mean_ms * left
        owed = sum(self._queues.targets) - sum(self._queues.generated)
        ttft_ms = engine.now + mean_ms * owed / max(1.0, engine.produced / engine.steps)
        return ttft_ms, ttft_ms + mean_ms * (left - 1)


def _until_first_in_line(engine: Lockstep) -> Lockstep:
    """The last moment of which it is certain that nothing before it depends on a newcomer."""
    while engine.waiting and engine.events_left > 0 and not engine.opens_next:
        if not engine.may_open():
            engine.advance()
            continue
        ahead = engine.copy()
        ahead.advance()
        if ahead.opened:
            break
        engine = ahead
    return engine


def simulate_fast(
    limits: EngineLimits,
    step_time: StepTime,
    requests: SequenceOf[RequestState],
    probe: Probe,
    *,
    horizon: Horizon = "newcomer",
    expected: ExpectedTotal = expected_total,
    events_max: int = EVENTS_MAX,
    admission: Admission | None = None,
) -> Forecast:
    """One probe for a state that is not asked again."""
    prepared = Prepared(
        limits,
        step_time,
        requests,
        expected=expected,
        events_max=events_max,
        admission=admission,
    )
    return prepared.probe(probe, horizon=horizon)


def trajectory(
    limits: EngineLimits,
    step_time: StepTime,
    requests: SequenceOf[RequestState],
    *,
    expected: ExpectedTotal = expected_total,
    admission: Admission | None = None,
) -> Base:
    """What happens to those present if nobody comes."""
    return Prepared(limits, step_time, requests, expected=expected, admission=admission).base()
