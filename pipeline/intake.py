"""From REQUESTS to TAGGED: check a request, estimate its length, hand it on.

The tagger runs this with its model; a dispatcher runs it with the running median when no tagger
is alive. A request that breaks the protocol ends here, with an error result and a dead letter.
"""

import msgspec
import structlog

from pipeline.bus import Bus, Delivery
from pipeline.cancels import Cancels
from pipeline.codec import decode, encode, readable_id
from pipeline.conclusion import (
    bury,
    conclude,
    error_result,
    find_result,
    publish_final,
    refused_result,
)
from pipeline.errors import (
    BadRequest,
    Cancelled,
    DeadlineExceeded,
    DuplicateId,
    QueueFull,
    RequestError,
)
from pipeline.estimates import Estimate, Estimator, Question
from pipeline.messages import (
    DEADLINE_MS_DEFAULT,
    PROMPT_BYTES_MAX,
    ErrorBody,
    LengthEstimate,
    OutputEvent,
    Request,
    TaggedRequest,
    Trace,
    prompt_text,
    wall_ms,
)
from pipeline.metrics import REFUSED, TAGGED
from pipeline.subjects import (
    DEFAULT_MODEL,
    Header,
    check_token,
    last_tokens,
    model_slug,
)
from pipeline.trace_context import read_traceparent, trace_headers

log = structlog.get_logger()

QUEUE_FULL_NAK_S = 0.2


class Intake:
    """Handler of REQUESTS. `stage` names it in metrics, logs and dead letters."""

    def __init__(self, bus: Bus, estimator: Estimator, cancels: Cancels, *, stage: str) -> None:
        self._bus = bus
        self._estimator = estimator
        self._cancels = cancels
        self._stage = stage

    async def handle(self, delivery: Delivery) -> None:
        """One request: refuse it, end it, or tag it and hand it on; then acknowledge."""
        received_at_ms = wall_ms()
        client, model = last_tokens(delivery.subject, 2)
        try:
            request = decode(delivery.data, Request)
            prompt = check_request(request, client, model)
        except BadRequest as error:
            await self._refuse(delivery, client, model, error)
            return

        estimate = await self._estimator.estimate(Question(request, prompt, model))
        tagged = _tag(delivery, request, client, model, estimate, received_at_ms)
        try:
            self._check_alive(tagged)
        except RequestError as error:
            REFUSED.labels(self._stage, error.code).inc()
            await conclude(self._bus, error_result(tagged, error))
            await delivery.ack()
            return
        await self._hand_on(delivery, tagged)

    def _check_alive(self, tagged: TaggedRequest) -> None:
        if tagged.key in self._cancels:
            raise Cancelled("cancelled before it was tagged")
        if wall_ms() > tagged.deadline_at_ms:
            raise DeadlineExceeded("the deadline passed before it was tagged", field="deadline_ms")

    async def _hand_on(self, delivery: Delivery, tagged: TaggedRequest) -> None:
        """Acknowledged only after TAGGED has it: a crash in between repeats the step."""
        headers = {Header.REQUEST: tagged.key, **trace_headers(tagged)}
        subjects = self._bus.subjects
        try:
            stored = await self._bus.jetstream.store(
                subjects.tagged(tagged.model, tagged.client),
                encode(tagged),
                message_id=f"{tagged.key}.{tagged.attempt}",
                headers=headers,
            )
        except QueueFull:
            await delivery.nak(QUEUE_FULL_NAK_S)
            return
        if stored.duplicate and delivery.deliveries == 1:
            await self._answer_repeated(tagged)
        else:
            TAGGED.labels(tagged.estimate.source).inc()
            await self._bus.jetstream.store(
                subjects.history(tagged.client, tagged.model),
                delivery.data,
                message_id=f"{tagged.key}.{delivery.sequence}",
                headers=headers,
            )
        await delivery.ack()

    async def _answer_repeated(self, tagged: TaggedRequest) -> None:
        """Somebody published an id that is taken: the stored result, or a note that it runs.

        The note carries attempt 0, below every run's, so it never ends the first publish's stream.
        """
        result = await find_result(self._bus, tagged.client, tagged.id)
        if result is not None:
            await publish_final(self._bus, result)
            return
        error = DuplicateId(f"request id {tagged.id} is taken", field="id")
        REFUSED.labels(self._stage, error.code).inc()
        note = OutputEvent(
            event="error",
            id=tagged.id,
            attempt=0,
            sequence=0,
            error=ErrorBody(code=error.code, message=error.message, field="id"),
        )
        await self._bus.publish(self._bus.subjects.output(tagged.client, tagged.id), encode(note))

    async def _refuse(self, delivery: Delivery, client: str, model: str, error: BadRequest) -> None:
        REFUSED.labels(self._stage, error.code).inc()
        await bury(self._bus, self._stage, delivery, error.message)
        request = readable_id(delivery.data)
        if request is not None:
            traceparent = read_traceparent(delivery.headers)
            await conclude(self._bus, refused_result(client, request, model, error, traceparent))
        await delivery.term()


def check_request(request: Request, client: str, model: str) -> str:
    """The prompt's text of a request that keeps the protocol. Raises BadRequest.

    Types and ranges were checked when it was decoded; this is what spans fields.
    """
    check_token(client, "client")
    check_token(model, "model")
    if (request.prompt is None) == (request.messages is None):
        raise BadRequest("give either prompt or messages", field="prompt")
    if request.model is not None and model_slug(request.model) != model:
        raise BadRequest(
            f"model is another than the subject's; publish to request.{client}."
            f"{model_slug(request.model)}, or leave model out for {DEFAULT_MODEL}",
            field="model",
        )
    if request.on_disconnect != "finish":
        raise BadRequest(
            "on_disconnect: only finish is available", field="on_disconnect", limit="finish"
        )
    prompt = prompt_text(request)
    if not prompt:
        raise BadRequest("prompt is empty", field="prompt", limit=1)
    size = len(prompt.encode("utf-8", "surrogatepass"))
    if size > PROMPT_BYTES_MAX:
        raise BadRequest(
            f"prompt has {size} bytes, the limit is {PROMPT_BYTES_MAX} (prompt_bytes_max)",
            field="prompt",
            limit=PROMPT_BYTES_MAX,
        )
    return prompt


def _tag(
    delivery: Delivery,
    request: Request,
    client: str,
    model: str,
    estimate: Estimate,
    received_at_ms: float,
) -> TaggedRequest:
    accepted_at_ms = delivery.stored_at_ms
    return TaggedRequest(
        id=request.id,
        client=client,
        model=model,
        request=msgspec.Raw(delivery.data),
        prompt_tokens=estimate.prompt_tokens,
        max_tokens=request.max_tokens,
        estimate=_capped(estimate.length, request),
        priority=request.priority,
        traceparent=read_traceparent(delivery.headers),
        deadline_at_ms=accepted_at_ms + (request.deadline_ms or DEADLINE_MS_DEFAULT),
        trace=Trace(
            sent_at_ms=request.sent_at_ms,
            accepted_at_ms=accepted_at_ms,
            tagger_received_at_ms=received_at_ms,
            estimate_ms=estimate.took_ms,
            tagged_at_ms=wall_ms(),
        ),
    )


def _capped(length: LengthEstimate, request: Request) -> LengthEstimate:
    """No answer is longer than max_tokens, and with ignore_eos none is shorter."""
    if request.max_tokens is None:
        return length
    cap = float(request.max_tokens)
    if request.ignore_eos:
        return LengthEstimate(p10=cap, p50=cap, p90=cap, source="ignore_eos", capped=True)
    if length.p90 <= cap:
        return length
    return msgspec.structs.replace(
        length, p10=min(length.p10, cap), p50=min(length.p50, cap), p90=cap, capped=True
    )
