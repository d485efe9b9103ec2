"""The commit point: how a request ends, at whatever stage.

RESULTS takes one result per request, written with the expectation that there is none yet. Who
loses that race sends the winner's final event: the client hears one outcome, at least once.
Order: store the result, publish the final event, and only then acknowledge the input. A crash
in between repeats the step and finds the stored result.
"""

from collections.abc import Mapping
from typing import Protocol

import structlog

from pipeline.bus import Bus
from pipeline.codec import decode, encode
from pipeline.errors import RequestError, SequenceConflict
from pipeline.messages import (
    ErrorBody,
    OutputEvent,
    Result,
    TaggedRequest,
    Trace,
    wall_ms,
)
from pipeline.metrics import BURIED
from pipeline.subjects import Header
from pipeline.trace_context import trace_headers

log = structlog.get_logger()


async def find_result(bus: Bus, client: str, request: str) -> Result | None:
    """The stored result of a request, by direct get."""
    stored = await bus.jetstream.last(
        bus.subjects.results_stream, bus.subjects.result(client, request)
    )
    return None if stored is None else decode(stored.data, Result)


async def conclude(bus: Bus, result: Result) -> Result:
    """Commit `result` and publish its final event; returns the result that is stored.

    That is another one when somebody else was first.
    """
    committed = result
    try:
        await bus.jetstream.store(
            bus.subjects.result(result.client, result.id),
            encode(result),
            expect_last=0,
            headers=_result_headers(result),
        )
    except SequenceConflict:
        committed = await find_result(bus, result.client, result.id) or result
    await publish_final(bus, committed)
    return committed


async def publish_final(bus: Bus, result: Result) -> None:
    """Publish the final event of a stored result; it may come twice, identical."""
    await bus.publish(
        bus.subjects.output(result.client, result.id),
        encode(final_event(result)),
        headers=trace_headers(result),
    )


def final_event(result: Result) -> OutputEvent:
    """The event that ends a request's output, made from its result alone."""
    return OutputEvent(
        event=result.status,
        id=result.id,
        attempt=result.attempt,
        sequence=result.sequence,
        text="" if result.stream else result.text,
        finish_reason=result.finish_reason,
        usage=result.usage,
        error=result.error,
        instance=result.instance,
    )


def error_body(error: RequestError) -> ErrorBody:
    return ErrorBody(
        code=error.code,
        message=error.message,
        field=error.field,
        limit=error.limit,
        retry_after_ms=error.retry_after_ms,
    )


def error_result(tagged: TaggedRequest, error: RequestError, **more: object) -> Result:
    """The result of a request that a stage ends with an error."""
    return Result(
        id=tagged.id,
        client=tagged.client,
        model=tagged.model,
        status="error",
        attempt=tagged.attempt,
        crashes=tagged.crashes,
        error=error_body(error),
        estimate=tagged.estimate,
        trace=tagged.trace,
        traceparent=tagged.traceparent,
        **more,  # type: ignore[arg-type]  # checked by the struct itself
    )


def refused_result(
    client: str, request: str, model: str, error: RequestError, traceparent: str | None = None
) -> Result:
    """The result of a request that never became a TaggedRequest."""
    return Result(
        id=request,
        client=client,
        model=model,
        status="error",
        attempt=1,
        error=error_body(error),
        trace=Trace(finished_at_ms=wall_ms()),
        traceparent=traceparent,
    )


class Stored(Protocol):
    """A message of a stream, delivered or read."""

    @property
    def subject(self) -> str: ...
    @property
    def sequence(self) -> int: ...
    @property
    def data(self) -> bytes: ...
    @property
    def headers(self) -> Mapping[str, str]: ...


async def bury(bus: Bus, stage: str, message: Stored, reason: str) -> None:
    """Copy a message that can never work to `dead.<stage>`, with the reason; once per message."""
    headers = {
        **_plain(message.headers),
        Header.REASON: " ".join(reason.split())[:512],
        Header.ORIGINAL_SUBJECT: message.subject,
    }
    await bus.jetstream.store(
        bus.subjects.dead(stage),
        message.data,
        message_id=f"{stage}.{message.sequence}",
        headers=headers,
    )
    BURIED.labels(stage).inc()
    log.warning("message_buried", stage=stage, subject=message.subject, reason=reason)


def _plain(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers without those that JetStream would act on."""
    return {k: v for k, v in headers.items() if not k.lower().startswith("nats-")}


def _result_headers(result: Result) -> dict[str, str]:
    """What travels on `finished.…` in place of the body."""
    headers = {
        Header.REQUEST: result.key,
        Header.ATTEMPT: str(result.attempt),
        Header.STATUS: result.status,
        Header.MODEL: result.model,
        **trace_headers(result),
    }
    if result.instance is not None:
        headers[Header.INSTANCE] = result.instance
    if result.usage is not None:
        headers[Header.PROMPT_TOKENS] = str(result.usage.prompt_tokens)
        headers[Header.COMPLETION_TOKENS] = str(result.usage.completion_tokens)
    estimate = result.estimate
    if estimate is not None and result.finish_reason == "stop" and not estimate.capped:
        # Only of answers that ended by themselves: what was cut says nothing of its length.
        headers[Header.ESTIMATE] = f"{estimate.p50 / estimate.correction:g}"
        headers[Header.ESTIMATE_SOURCE] = estimate.source
    return headers
