"""How an answer ended, told apart: whole, cut, failed, refused, late, or nobody there."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from evaluation.rivals.http_client import PATH, HttpClient
from evaluation.rivals.seen import Seen
from evaluation.rivals.workload import arrival

ARRIVAL = arrival("a", 0.0, 5, 3, text_seed="a")
TOKEN = b'data: {"system_fingerprint":"e7","choices":[{"delta":{"content":"a"}}]}\n\n'
LAST = b'data: {"choices":[{"delta":{"content":"b"},"finish_reason":"length"}]}\n\n'
COUNTS = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":9}}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'event: error\ndata: {"error":{"message":"upstream is gone"}}\n\n'

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def client_of(handler: Handler) -> AsyncIterator[HttpClient]:
    app = web.Application()
    app.router.add_post(PATH, handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with HttpClient.connect(url, "model") as client:
            yield client
    finally:
        await runner.cleanup()


def streaming(*events: bytes, then: str = "end") -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(event)
        if then == "break":
            await asyncio.sleep(0.05)
            assert request.transport is not None
            request.transport.abort()
        if then == "hang":
            await asyncio.sleep(5)
        return response

    return handler


async def seen_of(handler: Handler, within_s: float = 5.0) -> Seen:
    async with client_of(handler) as client:
        return await client.send(ARRIVAL, time.monotonic(), within_s=within_s)


async def test_a_whole_answer() -> None:
    seen = await seen_of(streaming(TOKEN, LAST, COUNTS, DONE))
    assert (seen.ending, seen.tokens, seen.instance) == ("whole", 9, "e7")
    assert seen.ttft_ms is not None and seen.e2e_ms is not None
    assert 0 <= seen.send_lag_ms <= seen.ttft_ms <= seen.e2e_ms


@pytest.mark.parametrize(
    "handler",
    [
        streaming(TOKEN),
        streaming(TOKEN, DONE),
        streaming(TOKEN, then="break"),
        streaming(TOKEN, LAST),
    ],
    ids=["no mark", "no reason", "connection broken", "a reason and no mark"],
)
async def test_a_stream_that_just_stops_is_cut(handler: Handler) -> None:
    seen = await seen_of(handler)
    assert seen.ending == "cut"
    assert seen.ttft_ms is not None and seen.detail


@pytest.mark.parametrize("after", [(), (DONE,), (LAST, DONE)])
async def test_an_error_event_is_one_whatever_comes_after(after: tuple[bytes, ...]) -> None:
    seen = await seen_of(streaming(TOKEN, ERROR, *after))
    assert seen.ending == "error_event"
    assert "upstream is gone" in seen.detail


@pytest.mark.parametrize("event", [b"data: oh no\n\n", b'data: {"choices": 7}\n\n'])
async def test_an_event_that_is_none_is_an_error(event: bytes) -> None:
    assert (await seen_of(streaming(TOKEN, event))).ending == "error_event"


async def test_a_null_error_is_none() -> None:
    token = TOKEN.replace(b'{"system', b'{"error":null,"system')
    assert (await seen_of(streaming(token, LAST, DONE))).ending == "whole"


async def test_a_refusal_has_its_status_and_text() -> None:
    async def refuse(_request: web.Request) -> web.Response:
        return web.Response(status=503, text="no workers")

    seen = await seen_of(refuse)
    assert (seen.ending, seen.detail) == ("refused", "503 no workers")
    assert seen.ttft_ms is None


async def test_an_answer_that_hangs_is_late() -> None:
    seen = await seen_of(streaming(TOKEN, then="hang"), within_s=0.2)
    assert seen.ending == "late"
    assert seen.e2e_ms is not None and seen.e2e_ms >= 200


async def test_nobody_there() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with HttpClient.connect(f"http://127.0.0.1:{port}", "model") as client:
        seen = await client.send(ARRIVAL, time.monotonic())
    assert seen.ending == "unreachable"


async def test_times_count_from_when_it_was_due() -> None:
    async with client_of(streaming(TOKEN, LAST, DONE)) as client:
        seen = await client.send(ARRIVAL, time.monotonic() - 1.0)
    assert seen.send_lag_ms >= 1000
    assert seen.ttft_ms is not None and seen.ttft_ms >= 1000


async def test_leaving_an_answer_that_is_already_over_is_an_error() -> None:
    async with client_of(streaming(TOKEN, LAST, DONE)) as client:
        with pytest.raises(RuntimeError, match="was over"):
            await client.open_and_leave(ARRIVAL, 2.0, stream=True)
