"""One request on the engine: from its inbox message to its stored result.

Order matters. The result is stored before the message is acknowledged, so a crash in between
repeats the request, finds the result, and only sends the final event again.
"""

import asyncio
from contextlib import aclosing

import msgspec
import structlog

from pipeline.bus import Bus, Delivery
from pipeline.cancels import Cancels
from pipeline.codec import decode
from pipeline.conclusion import (
    bury,
    conclude,
    error_result,
    find_result,
    publish_final,
)
from pipeline.errors import (
    BadRequest,
    Cancelled,
    DeadlineExceeded,
    EngineFailed,
    Overloaded,
    RequestError,
)
from pipeline.messages import (
    DispatchedRequest,
    FinishReason,
    Request,
    Result,
    Usage,
    prompt_text,
    wall_ms,
)
from pipeline.metrics import REFUSED
from pipeline.requeue import requeue
from pipeline.trace_context import trace_headers
from workers.engine import Engine, EngineDown, EngineRequest
from workers.gauges import count_result
from workers.lease import Hold
from workers.ledger import Entry, Ledger
from workers.output import Output

log = structlog.get_logger()

ENGINE_FULL_NAK_S = 0.2
ENGINE_DOWN_NAK_S = 2.0
"""By then this worker has noticed, and handed back what lies in its inbox."""


class Answer:
    """What the engine has produced so far."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.tokens = 0
        self.finish_reason: FinishReason | None = None
        self.prompt_tokens = 0
        self.preemptions = 0
        self.first_token_at_ms: float | None = None


class Runner:
    """Handler of one boot's inbox."""

    def __init__(
        self,
        bus: Bus,
        tokens_bus: Bus,
        engine: Engine,
        ledger: Ledger,
        hold: Hold,
        cancels: Cancels,
        *,
        instance: str,
    ) -> None:
        self._bus = bus
        self._tokens_bus = tokens_bus
        self._engine = engine
        self._ledger = ledger
        self._hold = hold
        self._cancels = cancels
        self._instance = instance
        self._abandoned = False

    def abandon(self) -> None:
        """The boot is over: whatever is in hand belongs to somebody else."""
        self._abandoned = True

    async def handle(self, delivery: Delivery) -> None:
        """One inbox message."""
        received_at_ms = wall_ms()
        try:
            dispatched = decode(delivery.data, DispatchedRequest)
            request = decode(bytes(dispatched.request), Request)
        except BadRequest as error:
            await bury(self._bus, "worker", delivery, error.message)
            await delivery.term()
            return
        if dispatched.key in self._ledger:
            # A redelivery of what already runs here (a late keep-alive): that run settles it.
            await delivery.nak(1.0)
            return
        stored = await find_result(self._bus, dispatched.client, dispatched.id)
        if stored is not None:
            await publish_final(self._tokens_bus, stored)
            await delivery.ack()
            return
        dispatched = _stamped(dispatched, worker_received_at_ms=received_at_ms)
        entry = self._ledger.add(dispatched, inbox_ms=received_at_ms - delivery.stored_at_ms)
        try:
            await self._run(delivery, entry, dispatched, request)
        except asyncio.CancelledError:
            await self._hand_back(delivery, dispatched)
        finally:
            self._ledger.remove(dispatched.key)

    async def _run(
        self, delivery: Delivery, entry: Entry, dispatched: DispatchedRequest, request: Request
    ) -> None:
        answer = Answer()
        output = Output(
            self._tokens_bus,
            self._hold,
            client=dispatched.client,
            request=dispatched.id,
            attempt=dispatched.attempt,
            instance=self._instance,
            headers=trace_headers(dispatched),
        )
        failure: RequestError | None = None
        accepted_at_ms = wall_ms()
        try:
            await self._generate(entry, dispatched, request, answer, output)
        except Overloaded:
            # The engine's own queue is full; that is no failure of the request.
            await delivery.nak(ENGINE_FULL_NAK_S)
            return
        except EngineDown:
            # No crash of this request: handed back at once it could come here again, and again,
            # while this instance still counts as ready.
            await delivery.nak(ENGINE_DOWN_NAK_S)
            return
        except EngineFailed as error:
            # As a crash: another instance tries, a few times at most.
            log.warning("engine_failed", request=dispatched.key, error=error.message)
            await self._hand_back(delivery, dispatched, crashed=True)
            return
        except RequestError as error:
            failure = error
            entry.outcome = "cancelled" if isinstance(error, Cancelled) else "failed"
            REFUSED.labels("worker", error.code).inc()
        await output.finish()
        if self._abandoned or not await self._hold.speak():
            delivery.settled = True  # the rescuer deletes it; our acknowledgement is void
            return
        dispatched = _stamped(
            dispatched,
            engine_accepted_at_ms=accepted_at_ms,
            first_token_at_ms=answer.first_token_at_ms,
            finished_at_ms=wall_ms(),
        )
        result = self._result(dispatched, request, answer, output, failure)
        # On the connection that carries the tokens: the final event cannot overtake them.
        await conclude(self._tokens_bus, result)
        count_result(result)
        await delivery.ack()

    async def _generate(
        self,
        entry: Entry,
        dispatched: DispatchedRequest,
        request: Request,
        answer: Answer,
        output: Output,
    ) -> None:
        """Stream the engine's answer. Raises the RequestError that ends it early."""
        if dispatched.key in self._cancels:
            raise Cancelled("cancelled before the engine took it")
        if dispatched.attempt > 1 and request.stream:
            await output.restart()
        left_s = (dispatched.deadline_at_ms - wall_ms()) / 1000
        if left_s <= 0:
            raise DeadlineExceeded("the deadline passed in the inbox", field="deadline_ms")
        engine_request = EngineRequest(
            key=dispatched.key,
            request=request,
            prompt=prompt_text(request),
            prompt_tokens=dispatched.prompt_tokens,
            priority=dispatched.priority,
        )
        try:
            async with (
                asyncio.timeout(left_s),
                aclosing(self._engine.generate(engine_request)) as deltas,
            ):
                async for delta in deltas:
                    if answer.first_token_at_ms is None and delta.tokens:
                        answer.first_token_at_ms = wall_ms()
                    answer.text.append(delta.text)
                    answer.tokens += delta.tokens
                    self._ledger.grew(entry, answer.tokens)
                    answer.finish_reason = delta.finish_reason
                    answer.prompt_tokens = delta.prompt_tokens or answer.prompt_tokens
                    answer.preemptions = delta.preemptions or answer.preemptions
                    if request.stream and delta.tokens:
                        await output.add(delta.text, delta.tokens)
        except TimeoutError:
            raise DeadlineExceeded(
                "the deadline passed during generation", field="deadline_ms"
            ) from None
        if entry.cancelled:
            raise Cancelled("cancelled during generation")
        if answer.finish_reason is None:
            raise EngineFailed("the engine's stream ended without a finish reason")
        entry.outcome = answer.finish_reason

    def _result(
        self,
        dispatched: DispatchedRequest,
        request: Request,
        answer: Answer,
        output: Output,
        failure: RequestError | None,
    ) -> Result:
        common = {
            "text": "".join(answer.text),
            "usage": Usage(
                prompt_tokens=answer.prompt_tokens or dispatched.prompt_tokens,
                completion_tokens=answer.tokens,
            ),
            "instance": self._instance,
            "sequence": output.sequence,
            "stream": request.stream,
            "preemptions": answer.preemptions,
            "decision": dispatched.decision,
            "metadata": request.metadata,
        }
        if failure is not None:
            return error_result(dispatched, failure, **common)
        return Result(
            id=dispatched.id,
            client=dispatched.client,
            model=dispatched.model,
            status="done",
            attempt=dispatched.attempt,
            crashes=dispatched.crashes,
            finish_reason=answer.finish_reason,
            estimate=dispatched.estimate,
            trace=dispatched.trace,
            traceparent=dispatched.traceparent,
            **common,  # type: ignore[arg-type]  # checked by the struct itself
        )

    async def _hand_back(
        self, delivery: Delivery, dispatched: DispatchedRequest, *, crashed: bool = False
    ) -> None:
        """This worker will not finish it: the next attempt goes to TAGGED."""
        if self._abandoned or self._hold.lost.is_set():
            delivery.settled = True
            return
        await requeue(self._bus, dispatched, crashed=crashed)
        await delivery.ack()
        log.info("request_handed_back", request=dispatched.key, crashed=crashed)


def _stamped(dispatched: DispatchedRequest, **instants: float | None) -> DispatchedRequest:
    return msgspec.structs.replace(
        dispatched, trace=msgspec.structs.replace(dispatched.trace, **instants)
    )
