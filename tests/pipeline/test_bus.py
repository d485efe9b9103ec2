"""The connection against a real server: publish, request, subscribe, and what the client library
does when it goes wrong (notes on the bus, A1.2)."""

import asyncio
from pathlib import Path

import pytest

from pipeline.bus import Bus, BusSettings, Message
from pipeline.bus.connection import HEADER_OVERHEAD_BYTES
from pipeline.bus.service import ServiceError, ServiceRefusal, serve
from pipeline.errors import (
    BusUnavailable,
    MessageTooLarge,
    NoResponders,
    RequestTimeout,
    ServiceFailed,
    ServiceRefused,
)
from pipeline.nats_server import NatsServer
from tests.conftest import Connect
from tests.waiting import eventually

HEADERS = {"Astrolabe-Request": "default.r1", "Astrolabe-Reason": "größer"}
HEADERS_BYTES = HEADER_OVERHEAD_BYTES + sum(
    len(k) + len(v.encode()) + 4 for k, v in HEADERS.items()
)


async def listen(bus: Bus, subject: str) -> list[Message]:
    heard: list[Message] = []
    await bus.subscribe(subject, heard.append)
    await bus.flush()
    return heard


async def test_the_largest_message_arrives_with_its_headers(bus: Bus) -> None:
    heard = await listen(bus, "size")
    await bus.publish("size", b"x" * (bus.max_payload - HEADERS_BYTES), headers=HEADERS)
    await eventually(lambda: len(heard) == 1)
    assert heard[0].headers == HEADERS


@pytest.mark.parametrize("headers", [None, HEADERS])
async def test_failure_2_one_byte_more_is_refused_before_the_wire(
    bus: Bus, headers: dict[str, str] | None
) -> None:
    size = bus.max_payload - (HEADERS_BYTES if headers else 0) + 1
    heard = await listen(bus, "size")
    with pytest.raises(MessageTooLarge) as refused:
        await bus.publish("size", b"x" * size, headers=headers)
    assert refused.value.size_bytes == bus.max_payload + 1
    with pytest.raises(MessageTooLarge):
        await bus.request("size", b"x" * size, headers=headers, timeout_s=1)
    with pytest.raises(MessageTooLarge):
        await bus.jetstream.store(
            "astrolabe.dead.test", b"x" * bus.max_payload, headers=headers, message_id="1"
        )
    await bus.publish("size", b"small")
    await eventually(lambda: len(heard) == 1)
    assert not bus.closed.is_set()


async def test_nobody_there_is_told_from_nobody_answering(bus: Bus) -> None:
    with pytest.raises(NoResponders, match=r"nowhere\.at\.all"):
        await bus.request("nowhere.at.all", timeout_s=5)
    await listen(bus, "deaf")
    with pytest.raises(RequestTimeout, match="deaf"):
        await bus.request("deaf", timeout_s=0.1)


async def test_a_service_answers_refuses_or_breaks(bus: Bus) -> None:
    async def answer(message: Message) -> bytes:
        if message.data == b"too early":
            raise ServiceError("not today")
        if message.data == b"nonsense":
            raise ServiceRefusal("not ever")
        if message.data == b"break":
            raise ZeroDivisionError("secret detail")
        return b"pong " + message.data

    service = await serve(bus, "tester", "A test.", endpoint=("ask", "ask.me", answer))
    assert (await bus.request("ask.me", b"1", timeout_s=2)).data == b"pong 1"
    with pytest.raises(ServiceFailed, match="503 not today") as failed:
        await bus.request("ask.me", b"too early", timeout_s=2)
    assert not isinstance(failed.value, ServiceRefused)
    with pytest.raises(ServiceRefused, match="422 not ever"):
        await bus.request("ask.me", b"nonsense", timeout_s=2)
    with pytest.raises(ServiceFailed, match="500 ZeroDivisionError") as broke:
        await bus.request("ask.me", b"break", timeout_s=2)
    assert "secret" not in str(broke.value)
    assert (await bus.request("ask.me", b"2", timeout_s=2)).data == b"pong 2"
    await service.stop()


async def test_a_reply_does_not_carry_the_requests_headers(bus: Bus) -> None:
    async def answer(_message: Message) -> bytes:
        return b"pong"

    service = await serve(bus, "tester", "A test.", endpoint=("ask", "ask.me", answer))
    reply = await bus.request("ask.me", timeout_s=2, headers={"Nats-Msg-Id": "7", "X-Auth": "s"})
    assert "X-Auth" not in reply.headers
    assert "Nats-Msg-Id" not in reply.headers
    await service.stop()


@pytest.mark.parametrize("error", [ValueError("bad"), asyncio.CancelledError()])
async def test_a_handler_that_raises_keeps_its_subscription(bus: Bus, error: BaseException) -> None:
    heard: list[bytes] = []

    def explode_once(message: Message) -> None:
        heard.append(message.data)
        if len(heard) == 1:
            raise error

    await bus.subscribe("explode", explode_once)
    for number in range(3):
        await bus.publish("explode", b"%d" % number)
    await eventually(lambda: heard == [b"0", b"1", b"2"])


async def test_a_closed_subscription_hears_no_more(bus: Bus) -> None:
    heard: list[Message] = []
    subscription = await bus.subscribe("some", heard.append)
    await subscription.close()
    await subscription.close()
    await bus.publish("some")
    with pytest.raises(NoResponders):
        await bus.request("some", timeout_s=2)
    assert not heard


async def test_reconnects_and_says_so(nats_server: NatsServer, bus: Bus) -> None:
    told: list[int] = []
    bus.on_reconnect(lambda: told.append(bus.reconnects))
    heard = await listen(bus, "again")
    nats_server.kill()
    await eventually(lambda: not bus.connected)
    await nats_server.restart()
    await eventually(lambda: told == [1])
    await bus.publish("again", b"1")
    await eventually(lambda: len(heard) == 1)
    assert not bus.closed.is_set()


async def test_failure_10_not_all_come_back_at_once(
    nats_server: NatsServer, connect: Connect
) -> None:
    loop = asyncio.get_running_loop()
    back_at: list[float] = []
    for number in range(20):
        one = await connect(f"one-{number}")
        one.on_reconnect(lambda: back_at.append(loop.time()))
    nats_server.kill()
    await asyncio.sleep(0.5)
    await nats_server.restart()
    await eventually(lambda: len(back_at) == 20, within_s=20)
    assert max(back_at) - min(back_at) > 0.2, "a herd would come within milliseconds"


async def test_no_server_is_one_line() -> None:
    with pytest.raises(
        BusUnavailable, match=r"no connection to NATS at nats://127\.0\.0\.1:1 "
    ) as no:
        await Bus.connect(BusSettings(url="nats://127.0.0.1:1"), name="test", timeout_s=0.3)
    assert "\n" not in str(no.value)


@pytest.mark.parametrize("url", ["nats://127.0.0.1:port", "nats://[", "http://127.0.0.1:4222"])
async def test_a_url_that_is_none_is_one_line(url: str) -> None:
    with pytest.raises(BusUnavailable) as refused:
        await Bus.connect(BusSettings(url=url), name="test", timeout_s=0.3)
    assert url in str(refused.value)


async def test_a_wrong_password_is_told_and_never_shown(tmp_path: Path) -> None:
    config = tmp_path / "closed.conf"
    config.write_text('authorization {user: ann, password: "right"}')
    async with NatsServer(tmp_path / "closed", config=config) as server:
        wrong = server.url.replace("//", "//ann:sesame@")
        with pytest.raises(BusUnavailable, match="Authorization Violation") as refused:
            await Bus.connect(BusSettings(url=wrong), name="test", timeout_s=0.5)
        assert "sesame" not in str(refused.value)
        right = server.url.replace("//", "//ann:right@")
        bus = await Bus.connect(BusSettings(url=right), name="test", timeout_s=5)
        await bus.close()


async def test_missing_credentials_are_one_line(nats_url: str) -> None:
    settings = BusSettings(url=nats_url, credentials_file="/nowhere/my.creds")
    with pytest.raises(BusUnavailable) as refused:
        await Bus.connect(settings, name="test", timeout_s=2)
    assert "\n" not in str(refused.value)


async def test_a_closed_bus_refuses_and_close_is_idempotent(connect: Connect) -> None:
    bus = await connect()
    await bus.close()
    await bus.close()
    assert bus.closed.is_set()
    with pytest.raises(BusUnavailable):
        await bus.publish("any")
    with pytest.raises(BusUnavailable):
        await bus.request("any", timeout_s=1)
    with pytest.raises(BusUnavailable):
        await bus.subscribe("any", lambda _message: None)


async def test_close_delivers_what_was_published(connect: Connect, bus: Bus) -> None:
    heard = await listen(bus, "last.words")
    other = await connect("other")
    for _ in range(100):
        await other.publish("last.words", b"bye")
    await other.close()
    await eventually(lambda: len(heard) == 100)
