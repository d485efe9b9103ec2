"""The predictor beside one instance, as a NATS service: state in, predictions out.

What the probes of one state share is computed once (predictor/fast.py); a probe of it then takes
microseconds. A large state is computed on a thread, so that the bus is never held up for more than
a few milliseconds. Probes are answered one after another.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import structlog
from msgspec.structs import replace

from pipeline.bus import Bus, Message
from pipeline.bus.service import ServiceError, ServiceRefusal, serve
from pipeline.codec import decode, encode
from pipeline.errors import AstrolabeError, RequestError
from pipeline.messages import Prediction, Probe, StateUpdate, wall_ms
from pipeline.metrics import PREDICTION_SECONDS, PREDICTIONS, STATE_DROPPED
from pipeline.periodic import every
from predictor.fast import Prepared
from predictor.fit import OnlineFit
from predictor.fit_store import FitStore
from predictor.forecast import Forecast, Horizon, marginal_delay_ms
from predictor.gauges import show
from predictor.load import load_answer
from predictor.scores import (
    DEFAULT_SCORE,
    SPREAD_DEFAULT,
    Outlook,
    make_score,
    needs_the_whole_horizon,
)
from predictor.trust import Trust
from predictor.view import InstanceView, NoStateError, View, fresh_fit

log = structlog.get_logger()

INLINE_REQUESTS_MAX = 400
"""Present requests up to which a prediction from scratch takes about 2 ms."""
SAVE_EVERY_S = 60.0
SHOW_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class PredictorSettings:
    """What a person can choose."""

    instance: str
    score: str = DEFAULT_SCORE
    fit_folder: Path | None = None
    """Where learnt step times are kept from one life to the next; None: they are not."""


class Predictor:
    """Answers probes for one instance."""

    def __init__(self, bus: Bus, settings: PredictorSettings) -> None:
        self._bus = bus
        self._settings = settings
        self._oracle = Oracle(settings.score)
        self._view = InstanceView(settings.instance, start_fit=self._start_fit)
        self._trust = Trust()
        self._store: FitStore | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="simulate")

    async def serve(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        subjects, instance = self._bus.subjects, self._settings.instance
        await self._bus.subscribe(subjects.state(instance), self._on_state)
        await self._bus.subscribe(subjects.queued(instance), self._on_queued)
        service = await serve(
            self._bus,
            "predictor",
            "Predicts what a request would experience on its instance.",
            metadata={"instance": instance, "score": self._settings.score},
            endpoint=("predict", subjects.predict(instance), self._answer),
        )
        log.info("predictor_ready", instance=instance)
        chores = [
            asyncio.create_task(self._save_now_and_then()),
            asyncio.create_task(every(SHOW_EVERY_S, self._show)),
        ]
        await stop.wait()
        for chore in chores:
            chore.cancel()
        await service.stop()
        await self._save()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _start_fit(self, update: StateUpdate) -> OnlineFit:
        folder = self._settings.fit_folder
        if folder is None:
            return fresh_fit(update)
        self._store = FitStore(folder, update.instance, update.model, update.engine)
        return self._store.fit(update.step_time, tokens_max=update.limits.max_num_batched_tokens)

    async def _save_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            await self._save()

    async def _show(self) -> None:
        show(self._trust.quality(), self._view.fit, self._view.source)

    async def _save(self) -> None:
        if self._store is not None and self._view.fit is not None:
            await asyncio.to_thread(self._store.save, self._view.fit, at_ms=wall_ms())

    def _on_state(self, message: Message) -> None:
        self._count_dropped(self._view.state(message.data))
        trusted = self._trust.trusted
        for ended in self._view.take_ended():
            self._trust.ended(ended)
        if trusted is not self._trust.trusted:
            log.warning(
                "predictor_not_trusted" if trusted else "predictor_trusted_again",
                instance=self._settings.instance,
            )

    def _on_queued(self, message: Message) -> None:
        self._count_dropped(self._view.queued(message.headers))

    def _count_dropped(self, reason: str | None) -> None:
        if reason is not None:
            STATE_DROPPED.labels(reason).inc()
            log.debug("state_dropped", reason=reason)

    async def _answer(self, message: Message) -> bytes:
        started = time.perf_counter()
        try:
            probe = decode(message.data, Probe)
            view = self._view.view()
            prediction = await self._predict(view, probe)
        except RequestError as error:  # a probe that breaks the protocol, or can never fit
            PREDICTIONS.labels("refused").inc()
            raise ServiceRefusal(str(error)) from error
        except AstrolabeError as error:
            PREDICTIONS.labels("failed").inc()
            raise ServiceError(str(error)) from error
        except NoStateError as error:
            PREDICTIONS.labels("no_state").inc()
            raise ServiceError(str(error)) from error
        except Exception:
            PREDICTIONS.labels("failed").inc()  # the service says so, with the traceback
            raise
        if probe.kind == "load":
            # Asked of every instance, it goes to one: expecting it here would be wrong mostly.
            PREDICTIONS.labels("load").inc()
        else:
            self._view.probed(probe)
            prediction = self._judged(view, probe, prediction)
            PREDICTIONS.labels("from_queue" if prediction.from_queue else "answered").inc()
        PREDICTION_SECONDS.observe(time.perf_counter() - started)
        return encode(prediction)

    async def _predict(self, view: View, probe: Probe) -> Prediction:
        """On the loop where it is short, on the thread where it is not."""
        spread = self._trust.spread()
        if len(view.requests) <= INLINE_REQUESTS_MAX:
            return self._oracle.predict(view, probe, spread)
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._oracle.predict, view, probe, spread
        )

    def _judged(self, view: View, probe: Probe, prediction: Prediction) -> Prediction:
        """The prediction, or the plain estimate while our record is worse than that would be."""
        answer = self._trust.answer(
            probe.key,
            prediction.ttft_ms,
            prediction.e2e_ms,
            ahead=len(view.requests),
            concurrency=view.limits.max_num_seqs,
        )
        if not answer.from_queue:
            return prediction
        return replace(
            prediction,
            ttft_ms=answer.ttft_ms,
            e2e_ms=answer.e2e_ms,
            cost=self._oracle.plain_cost(answer.ttft_ms, answer.e2e_ms, probe),
            from_queue=True,
        )


class Oracle:
    """Forecasts of one instance, each with its cost. One thread at a time."""

    def __init__(self, score: str = DEFAULT_SCORE) -> None:
        self._score = make_score(score)
        self._horizon: Horizon = "all" if needs_the_whole_horizon(score) else "newcomer"
        self._prepared: tuple[View, Prepared] | None = None

    def predict(self, view: View, probe: Probe, spread: float | None = None) -> Prediction:
        """Simulate the instance forward with the probe's request at the end of its queue; or say
        how loaded it is, where that is all the probe asks for."""
        if probe.kind == "load":
            return load_answer(view, probe)
        if self._prepared is None or self._prepared[0].version != view.version:
            self._prepared = (
                view,
                Prepared(view.limits, view.step_time, view.requests, admission=view.admission),
            )
        prepared = self._prepared[1]
        forecast = prepared.probe(probe, horizon=self._horizon)
        outlook = self._outlook(prepared, forecast, probe, spread)
        return Prediction(
            instance=view.instance,
            boot=view.boot,
            ttft_ms=forecast.ttft_ms,
            e2e_ms=forecast.e2e_ms,
            tpot_ms=forecast.tpot_ms,
            preemptions=forecast.preemptions,
            kv_blocks_peak=forecast.kv_blocks_peak,
            cost=self._score(outlook),
            state_age_ms=view.age_ms,
            requests=len(view.requests),
            steps=forecast.steps,
            extrapolated=forecast.extrapolated,
        )

    def plain_cost(self, ttft_ms: float, e2e_ms: float, probe: Probe) -> float:
        """The cost of times that came without a simulation."""
        return self._score(Outlook(ttft_ms, e2e_ms, deadline_ms=probe.deadline_ms))

    def _outlook(
        self, prepared: Prepared, forecast: Forecast, probe: Probe, spread: float | None
    ) -> Outlook:
        whole = self._horizon == "all"
        return Outlook(
            ttft_ms=forecast.ttft_ms,
            e2e_ms=forecast.e2e_ms,
            preemptions=forecast.preemptions,
            preemptions_horizon=forecast.preemptions_horizon,
            marginal_delay_ms=marginal_delay_ms(prepared.base(), forecast) if whole else 0.0,
            kv_blocks_free_min=forecast.kv_blocks_free_min,
            deadline_ms=probe.deadline_ms,
            e2e_spread=SPREAD_DEFAULT if spread is None else spread,
        )
