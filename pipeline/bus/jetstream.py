"""JetStream on one connection: store with retries, read by subject or sequence, delete.

A publish that timed out may have been stored all the same, so a retry always carries the same
`Nats-Msg-Id` or the same expectation: the caller gets "stored" once, however often it was sent.
"""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.errors import (
    BusError,
    BusMisconfigured,
    BusUnavailable,
    NoResponders,
    QueueFull,
    RequestTimeout,
    SequenceConflict,
)
from pipeline.subjects import Header

if TYPE_CHECKING:
    from pipeline.bus.connection import Bus, Message

API = "$JS.API"
API_TIMEOUT_S = 5.0
STORE_TIMEOUT_S = 15.0  # a leader election takes up to about 6 s
STORE_TRY_S = 2.0
STORE_RETRY_WAIT_S = 0.1

STORE_REFUSED = 10077  # a bound of the stream with discard=new
WRONG_LAST_SEQUENCE = (10071, 10164)
MESSAGE_NOT_FOUND = (10057, 10037, 10043)
CONSUMER_NOT_FOUND = 10014
STREAM_NOT_FOUND = 10059
READ_BATCH_MAX = 1000


class ApiError(BusError):
    """JetStream answered with an error; `err_code` is its stable number."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(f"JetStream error {err_code}: {description}")
        self.code = code
        self.err_code = err_code


class _ErrorReply(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _PubReply(msgspec.Struct):
    seq: int = 0
    duplicate: bool = False
    error: _ErrorReply | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A store acknowledgement. `duplicate`: the id was known before this call's first try."""

    sequence: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message read back from a stream."""

    subject: str
    sequence: int
    data: bytes
    headers: Mapping[str, str]


class JetStream:
    """Stores to and reads from streams. Made by `Bus`; use `bus.jetstream`."""

    def __init__(self, bus: "Bus") -> None:
        self._bus = bus
        self._decode_ack = msgspec.json.Decoder(_PubReply).decode

    async def store(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str | None = None,
        expect_last: int | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = STORE_TIMEOUT_S,
    ) -> Stored:
        """Publish until a stream has acknowledged it.

        Either `message_id` or `expect_last` (the subject's last sequence must be this; 0 for
        none) makes the retries safe. Raises QueueFull, SequenceConflict, MessageTooLarge, and
        BusUnavailable when the outcome is unknown.
        """
        if message_id is None and expect_last is None:
            raise ValueError("store needs message_id or expect_last: a retry could store twice")
        sent = dict(headers or {})
        if message_id is not None:
            sent[Header.MESSAGE_ID] = message_id
        if expect_last is not None:
            sent[Header.EXPECTED_LAST_SUBJECT_SEQUENCE] = str(expect_last)
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + timeout_s
        tries = 0
        while True:
            tries += 1
            reason: BusError
            try:
                left = give_up_at - loop.time()
                reply = await self._bus.request(
                    subject, data, timeout_s=min(STORE_TRY_S, max(left, 0.01)), headers=sent
                )
                ack = self._decode_ack(reply.data)
                if ack.error is None:
                    return Stored(ack.seq, ack.duplicate and tries == 1)
                reason = _store_error(subject, ack.error)
                if not isinstance(reason, BusUnavailable):
                    raise reason
            except (NoResponders, RequestTimeout, BusUnavailable) as error:
                reason = error
            except msgspec.DecodeError as error:
                raise BusError(f"{subject}: not a store acknowledgement: {error}") from error
            if loop.time() + STORE_RETRY_WAIT_S >= give_up_at:
                raise BusUnavailable(
                    f"{subject}: not acknowledged within {timeout_s:g} s ({reason})"
                ) from reason
            await asyncio.sleep(STORE_RETRY_WAIT_S * (0.5 + random.random()))

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        """The last message of `subject`, by direct get; None where there is none."""
        reply = await self._bus.request(
            f"{API}.DIRECT.GET.{stream}.{subject}", timeout_s=API_TIMEOUT_S
        )
        return None if _is_status(reply) else _stored(reply)

    async def read(
        self, stream: str, subject_filter: str, *, start: int = 1, limit: int = READ_BATCH_MAX
    ) -> list[StoredMessage]:
        """Up to `limit` messages from sequence `start` on whose subject fits the filter."""
        return await self._read_many(
            stream, {"seq": start, "next_by_subj": subject_filter, "batch": limit}
        )

    async def last_of_each(self, stream: str, subject_filter: str) -> list[StoredMessage]:
        """The last message of every subject that fits the filter (the server bounds it: 1,024)."""
        return await self._read_many(
            stream, {"multi_last": [subject_filter], "batch": READ_BATCH_MAX}
        )

    async def _read_many(self, stream: str, query: Mapping[str, object]) -> list[StoredMessage]:
        """A direct get with many replies (ADR-31): they end with a status message."""
        queue: asyncio.Queue[Message] = asyncio.Queue(READ_BATCH_MAX + 16)
        inbox = self._bus.new_inbox()
        subscription = await self._bus.subscribe(inbox, queue.put_nowait)
        found: list[StoredMessage] = []
        try:
            await self._bus.publish(
                f"{API}.DIRECT.GET.{stream}", msgspec.json.encode(query), reply=inbox
            )
            async with asyncio.timeout(API_TIMEOUT_S):
                while True:
                    message = await queue.get()
                    if not _is_status(message):
                        found.append(_stored(message))
                        continue
                    status = message.headers.get("Status")
                    if status in ("204", "404"):
                        return found
                    if status == "503":
                        raise NoResponders(f"stream {stream} does not exist or has no leader")
                    raise BusError(f"{stream}: {message.headers.get('Description', status)}")
        except TimeoutError:
            raise RequestTimeout(f"{stream}: no answer within {API_TIMEOUT_S:g} s") from None
        finally:
            await subscription.close()

    async def delete(self, stream: str, sequence: int) -> bool:
        """Remove one message; False where it was gone already."""
        try:
            await self.api(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence, "no_erase": True})
        except ApiError as error:
            if error.err_code in MESSAGE_NOT_FOUND:
                return False
            raise
        return True

    async def subject_counts(self, stream: str, subject_filter: str) -> dict[str, int]:
        """Messages per subject that a stream holds."""
        info = await self.api(f"STREAM.INFO.{stream}", {"subjects_filter": subject_filter})
        return dict(info["state"].get("subjects") or {})

    async def stream_info(self, stream: str) -> dict[str, Any]:
        """The server's description of a stream, as JSON."""
        return await self.api(f"STREAM.INFO.{stream}")

    async def consumer_info(self, stream: str, consumer: str) -> dict[str, Any] | None:
        """The server's description of a consumer; None where there is none."""
        try:
            return await self.api(f"CONSUMER.INFO.{stream}.{consumer}")
        except ApiError as error:
            if error.err_code in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
                return None
            raise

    async def consumers(self, stream: str) -> list[dict[str, Any]]:
        """Descriptions of a stream's first 256 consumers."""
        listed = await self.api(f"CONSUMER.LIST.{stream}", {"offset": 0})
        return list(listed.get("consumers") or [])

    async def delete_consumer(self, stream: str, consumer: str) -> None:
        """Remove a consumer; its unacknowledged messages stay in the stream."""
        try:
            await self.api(f"CONSUMER.DELETE.{stream}.{consumer}")
        except ApiError as error:
            if error.err_code != CONSUMER_NOT_FOUND:
                raise

    async def account(self) -> dict[str, Any]:
        """What this account uses and may use. Raises ApiError, BusMisconfigured."""
        return await self.api("INFO")

    async def api(self, verb: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """One call of JetStream's own API. Raises ApiError, BusMisconfigured, RequestTimeout."""
        payload = msgspec.json.encode(body) if body is not None else b""
        try:
            reply = await self._bus.request(f"{API}.{verb}", payload, timeout_s=API_TIMEOUT_S)
        except NoResponders:
            raise BusMisconfigured(
                f"NATS at {self._bus.settings.shown_url} has JetStream off; "
                "start nats-server with -js or a jetstream block in its configuration"
            ) from None
        answer: dict[str, Any] = msgspec.json.decode(reply.data)
        if error := answer.get("error"):
            raise ApiError(
                error.get("code", 0), error.get("err_code", 0), error.get("description", "")
            )
        return answer


def _store_error(subject: str, error: _ErrorReply) -> BusError:
    if error.err_code == STORE_REFUSED or error.code == 429:
        return QueueFull(f"{subject}: {error.description}")
    if error.err_code in WRONG_LAST_SEQUENCE:
        return SequenceConflict(f"{subject}: {error.description}")
    if error.code == 503:
        return BusUnavailable(f"{subject}: {error.description}")
    return ApiError(error.code, error.err_code, error.description)


def _is_status(message: "Message") -> bool:
    """Whether the server itself speaks. A stored message may have a header called Status too."""
    return "Nats-Sequence" not in message.headers


def _stored(message: "Message") -> StoredMessage:
    headers = message.headers
    return StoredMessage(
        headers["Nats-Subject"], int(headers["Nats-Sequence"]), message.data, headers
    )
