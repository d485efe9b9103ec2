"""The predictor beside one instance, as a NATS service: state in, predictions out.

A short simulation runs at once; a longer one on a thread of its own, so that state keeps coming in
meanwhile. Probes are answered one after another: a second simulation beside the first would only
slow both.
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
from predictor.simulation import simulate
from predictor.view import InstanceView, NoStateError, View

log = structlog.get_logger()

INLINE_TOKEN_STEPS_MAX = 2_000
"""At about 0.4 µs each: under a millisecond, less than the hop to a thread and back when busy."""


class Predictor:
    """Answers probes for one instance."""

    def __init__(self, bus: Bus, instance: str) -> None:
        self._bus = bus
        self._instance = instance
        self._view = InstanceView(instance)
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

    async def _answer(self, message: Message) -> bytes:
        started = time.perf_counter()
        try:
            probe = decode(message.data, Probe)
            view = self._view.view()
            self._view.probed(probe)
            if token_steps(view, probe) <= INLINE_TOKEN_STEPS_MAX:
                prediction = predict(self._instance, view, probe)
            else:
                prediction = await asyncio.get_running_loop().run_in_executor(
                    self._thread, predict, self._instance, view, probe
                )
        except AstrolabeError as error:  # a probe that breaks the protocol, or can never fit
            PREDICTIONS.labels("refused").inc()
            raise ServiceError(str(error)) from error
        except NoStateError as error:
            PREDICTIONS.labels("no_state").inc()
            raise ServiceError(str(error)) from error
        PREDICTIONS.labels("answered").inc()
        PREDICTION_SECONDS.observe(time.perf_counter() - started)
        return encode(prediction)


def token_steps(view: View, probe: Probe) -> float:
    """About how much a simulation has to do: tokens to generate while the newcomer is there."""
    newcomer = probe.estimate.p50
    return newcomer + sum(
        min(newcomer, max(1.0, state.p50 - state.generated_tokens)) for state in view.requests
    )


def predict(instance: str, view: View, probe: Probe) -> Prediction:
    """Simulate the instance forward with the probe's request at the end of its queue."""
    requests = [state for state in view.requests if state.key != probe.key]
    forecast = simulate(view.limits, view.step_time, requests, probe)
    return Prediction(
        instance=instance,
        boot=view.boot,
        ttft_ms=forecast.ttft_ms,
        e2e_ms=forecast.e2e_ms,
        tpot_ms=forecast.tpot_ms,
        preemptions=forecast.preemptions,
        kv_blocks_peak=forecast.kv_blocks_peak,
        cost=forecast.e2e_ms,
        state_age_ms=view.age_ms,
        requests=len(requests),
        steps=forecast.steps,
        extrapolated=forecast.extrapolated,
    )
