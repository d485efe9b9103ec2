"""The predictor beside one instance, as a NATS service: state in, predictions out.

What the probes of one state share is computed once (predictor/fast.py); a probe of it then takes
microseconds. A large state is computed on a thread, so that the bus is never held up for more than
a few milliseconds. Probes are answered one after another.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import structlog

from pipeline.bus import Bus, Message
from pipeline.bus.service import ServiceError, serve
from pipeline.codec import decode, encode
from pipeline.errors import AstrolabeError
from pipeline.messages import Prediction, Probe
from pipeline.metrics import PREDICTION_SECONDS, PREDICTIONS, STATE_DROPPED
from predictor.fast import Prepared
from predictor.view import InstanceView, NoStateError, View

log = structlog.get_logger()

INLINE_REQUESTS_MAX = 400
"""Present requests up to which a prediction from scratch takes about 2 ms."""


class Predictor:
    """Answers probes for one instance."""

    def __init__(self, bus: Bus, instance: str) -> None:
        self._bus = bus
        self._instance = instance
        self._view = InstanceView(instance)
        self._prepared: tuple[View, Prepared] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="simulate")

    async def serve(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        subjects = self._bus.subjects
        await self._bus.subscribe(subjects.state(self._instance), self._on_state)
        await self._bus.subscribe(subjects.queued(self._instance), self._on_queued)
        service = await serve(
            self._bus,
            "predictor",
            "Predicts what a request would experience on its instance.",
            metadata={"instance": self._instance},
            endpoint=("predict", subjects.predict(self._instance), self._answer),
        )
        log.info("predictor_ready", instance=self._instance)
        await stop.wait()
        await service.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _on_state(self, message: Message) -> None:
        self._count_dropped(self._view.state(message.data))

    def _on_queued(self, message: Message) -> None:
        self._count_dropped(self._view.queued(message.headers))

    def _count_dropped(self, reason: str | None) -> None:
        if reason is not None:
            STATE_DROPPED.labels(reason).inc()
            log.debug("state_dropped", reason=reason)

    async def _predict(self, view: View, probe: Probe) -> Prediction:
        """On the loop where it is short, on the thread where it is not."""
        if len(view.requests) <= INLINE_REQUESTS_MAX:
            return self._compute(view, probe)
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._compute, view, probe
        )

    def _compute(self, view: View, probe: Probe) -> Prediction:
        """One at a time: what is prepared is not for several threads at once."""
        if self._prepared is None or self._prepared[0].version != view.version:
            self._prepared = (view, prepare(view))
        return predict(view, self._prepared[1], probe)

    async def _answer(self, message: Message) -> bytes:
        started = time.perf_counter()
        try:
            probe = decode(message.data, Probe)
            view = self._view.view()
            prediction = await self._predict(view, probe)
            self._view.probed(probe)
        except AstrolabeError as error:  # a probe that breaks the protocol, or can never fit
            PREDICTIONS.labels("refused").inc()
            raise ServiceError(str(error)) from error
        except NoStateError as error:
            PREDICTIONS.labels("no_state").inc()
            raise ServiceError(str(error)) from error
        PREDICTIONS.labels("answered").inc()
        PREDICTION_SECONDS.observe(time.perf_counter() - started)
        return encode(prediction)


def prepare(view: View) -> Prepared:
    """What all probes of this view share."""
    return Prepared(view.limits, view.step_time, view.requests)


def predict(view: View, prepared: Prepared, probe: Probe) -> Prediction:
    """Simulate the instance forward with the probe's request at the end of its queue."""
    forecast = prepared.probe(probe)
    return Prediction(
        instance=view.instance,
        boot=view.boot,
        ttft_ms=forecast.ttft_ms,
        e2e_ms=forecast.e2e_ms,
        tpot_ms=forecast.tpot_ms,
        preemptions=forecast.preemptions,
        kv_blocks_peak=forecast.kv_blocks_peak,
        cost=forecast.e2e_ms,
        state_age_ms=view.age_ms,
        requests=len(view.requests),
        steps=forecast.steps,
        extrapolated=forecast.extrapolated,
    )
