"""The same forecasts as predictor/simulation.py, computed by events.

What happens without a newcomer is computed once for a state, as far as somebody needs it, and
shared by all its probes. Most newcomers are then laid over it; where that says nothing, the events
are run with the newcomer.
"""

from collections.abc import Sequence as SequenceOf

from pipeline.messages import Admission, EngineLimits, Probe, RequestState, StepTime
from predictor.forecast import Base, Forecast, Horizon, LazyTimes
from predictor.lengths import expected_total
from predictor.lockstep import Lockstep
from predictor.overlay import Laid, lay_over
from predictor.queues import ExpectedTotal, Newcomer, newcomer, resolve
from predictor.settle import settled
from predictor.spans import Span

EVENTS_MAX = 20_000
"""Of the order of 50 ms of Python. Blocks that run out again and again can make very many."""
CHECKPOINT_SPANS = 64
"""Copying the state costs about as much as two events."""
ENDLESS_STEPS = 1 << 40


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
        self._limits, self._step_time, self._requests = limits, step_time, requests
        self._expected, self._events_max = expected, events_max
        self._admission = admission
        self._queues = resolve(limits, requests, expected=expected, admission=admission)
        self._keys = frozenset(self._queues.keys)
        self._spans: list[Span] = []
        self._engine = settled(limits, step_time, self._queues, spans=self._spans)
        self._checkpoint: Lockstep | None = None
        """A copy of the engine from before its first open span: until then the newcomer is behind
        somebody else, and changes nothing. None is the very start."""
        self._checked = 0
        """Spans before the checkpoint."""
        self._first = next((n for n, span in enumerate(self._spans) if span.open), -1)
        """Number of the first open span, once it is there."""
        self._ended = False
        """The last span is the endless one of an empty engine."""

    def base(self) -> Base:
        """What happens if nobody comes."""
        done = self._run_out()
        engine, keys = self._engine, self._queues.keys
        return Base(
            finish_ms=dict(
                zip(map(keys.__getitem__, engine.finished), engine.finish_ms, strict=True)
            ),
            preemptions=engine.preemptions,
            kv_blocks_peak=self._limits.kv_blocks - engine.free_min,
            steps=engine.steps,
            extrapolated=not done,
            never_fits=tuple(self._queues.never_fits),
        )

    def probe(self, probe: Probe, *, horizon: Horizon = "newcomer") -> Forecast:
        """What the newcomer would experience behind everybody. Raises PromptTooLong."""
        if probe.key in self._keys:  # on its way here already, or asked about a moment ago
            others = [state for state in self._requests if state.key != probe.key]
            return Prepared(
                self._limits,
                self._step_time,
                others,
                expected=self._expected,
                events_max=self._events_max,
                admission=self._admission,
            ).probe(probe, horizon=horizon)
        asked = newcomer(self._limits, probe, self._expected)
        if horizon == "newcomer" or self._run_out():
            laid = self._lay(asked)
            if laid is not None:
                return self._forecast_laid(asked, laid, horizon)
        return self._forecast_run(asked, horizon)

    # ------------------------------------------------------------------ without the newcomer

    def _more(self) -> bool:
        """One more span; False if the bound came first. Behind the last is an endless one."""
        engine, spans = self._engine, self._spans
        if self._ended or len(spans) >= self._events_max:
            return False
        if engine.busy:
            if self._first < 0 and len(spans) - self._checked >= CHECKPOINT_SPANS:
                self._checkpoint, self._checked = engine.copy(), len(spans)
            engine.advance()
        else:
            self._ended = True
            spans.append(
                Span(
                    ENDLESS_STEPS, 0, 0, 0, 0, 0, [0] * self._limits.block_size, True, engine.free,
                    engine.free, engine.free_min, engine.preemptions, engine.steps, engine.now,
                    engine.now, len(engine.finished),
                )
            )  # fmt: skip
        if self._first < 0 and spans[-1].open:
            self._first = len(spans) - 1
        return True

    def _run_out(self) -> bool:
        while not self._ended:
            if not self._more():
                return False
        return True

    # ------------------------------------------------------------------ with it

    def _lay(self, asked: Newcomer) -> Laid | None:
        while self._first < 0:
            if not self._more():
                return None
        if not self._engine.LAYS_OVER:
            return None
        return lay_over(
            self._spans, self._more, self._first, type(self._engine), self._limits,
            self._step_time, asked.prompt, asked.target,
        )  # fmt: skip

    def _forecast_laid(self, asked: Newcomer, laid: Laid, horizon: Horizon) -> Forecast:
        spans, engine = self._spans, self._engine
        before = spans[laid.admitted - 1].finished if laid.admitted else 0
        there = len(self._queues.keys)
        others = 0.0
        gone = before
        for number, delay_ms in enumerate(laid.delays_ms, laid.admitted):
            finished = spans[number].finished
            others += (finished - gone) * delay_ms
            gone = finished
        others += (there - gone) * laid.delay_ms
        until = engine if horizon == "all" else laid
        return Forecast(
            ttft_ms=laid.ttft_ms,
            e2e_ms=laid.e2e_ms,
            tpot_ms=(laid.e2e_ms - laid.ttft_ms) / max(1, asked.target - 1),
            preemptions=laid.preemptions,
            kv_blocks_peak=self._limits.kv_blocks - laid.free_min,
            steps=laid.steps,
            finish_ms=LazyTimes(lambda: self._times(asked, laid, horizon)),
            preemptions_horizon=until.preemptions,
            kv_blocks_free_min=laid.free_min,
            never_fits=tuple(self._queues.never_fits),
            horizon=horizon,
            others_delay_ms=others,
        )

    def _times(self, asked: Newcomer, laid: Laid, horizon: Horizon) -> dict[str, float]:
        """Everybody's finish is as without the newcomer, plus its delay until then."""
        spans, engine, keys = self._spans, self._engine, self._queues.keys
        times = engine.finish_ms[:]
        gone = spans[laid.admitted - 1].finished if laid.admitted else 0
        for number, delay_ms in enumerate(laid.delays_ms, laid.admitted):
            finished = spans[number].finished
            for place in range(gone, finished):
                times[place] += delay_ms
            gone = finished
        if horizon == "all":
            for place in range(gone, len(times)):
                times[place] += laid.delay_ms
        else:
            del times[gone:]
        named = {keys[row]: ms for row, ms in zip(engine.finished, times, strict=False)}
        named[asked.key] = laid.e2e_ms
        return named

    def _forecast_run(self, asked: Newcomer, horizon: Horizon) -> Forecast:
        limits, queues = self._limits, self._queues
        if self._checkpoint is not None:
            engine = self._checkpoint.copy()
            row = engine.append(asked)
        else:
            queues = queues.copy()
            row = queues.append(asked)
            engine = settled(limits, self._step_time, queues, watched=row)
        events = self._run(engine, 0, until_done=True)
        ttft_ms, e2e_ms = self._extrapolated(engine, row)
        steps, preemptions, free_min = engine.steps, engine.preemptions, engine.free_min
        extrapolated = not engine.done
        if horizon == "all":
            self._run(engine, events, until_done=False)
            extrapolated |= engine.busy
        keys = [*self._queues.keys, asked.key]
        finish_ms = {
            keys[finished]: ms
            for finished, ms in zip(engine.finished, engine.finish_ms, strict=True)
        }
        finish_ms[asked.key] = e2e_ms
        return Forecast(
            ttft_ms=ttft_ms,
            e2e_ms=e2e_ms,
            tpot_ms=(e2e_ms - ttft_ms) / max(1, asked.target - 1),
            preemptions=preemptions,
            kv_blocks_peak=limits.kv_blocks - free_min,
            steps=steps,
            extrapolated=extrapolated,
            finish_ms=finish_ms,
            preemptions_horizon=engine.preemptions,
            kv_blocks_free_min=free_min,
            never_fits=tuple(queues.never_fits),
            horizon=horizon,
        )

    def _run(self, engine: Lockstep, events: int, *, until_done: bool) -> int:
        while events < self._events_max and not (engine.done if until_done else not engine.busy):
            engine.advance()
            events += 1
        return events

    def _extrapolated(self, engine: Lockstep, row: int) -> tuple[float, float]:
        """As predictor/simulation.py does where its bound comes first."""
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
