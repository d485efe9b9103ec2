"""The server behind the routers, through a real HTTP client: what it streams, refuses and frees."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import ClientSession
from hypothesis import given
from hypothesis import strategies as st

from evaluation.rivals import load_reports, wire
from evaluation.rivals.load_reports import Load
from evaluation.rivals.server import Server, serving
from pipeline.messages import EngineLimits
from tests.waiting import eventually
from workers.engine import EngineStats, Progress
from workers.simulated import SimulatedEngine
from workers.simulated_settings import SimulatedSettings

FAST = SimulatedSettings(time_scale=0.02, noise=0)
SLOW = SimulatedSettings(time_scale=1.0, max_num_seqs=3, queue_max=2)
PATH = "/v1/chat/completions"


@asynccontextmanager
async def served(
    settings: SimulatedSettings,
) -> AsyncIterator[tuple[ClientSession, Server, SimulatedEngine]]:
    engine = SimulatedEngine(settings)
    async with (
        serving(engine, "e0") as (server, port),
        ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        yield session, server, engine


def body(
    prompt: str = "Why is the sky blue?", tokens: int = 5, **more: object
) -> dict[str, object]:
    return {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "ignore_eos": True,
        **more,
    }


async def events_of(session: ClientSession, **more: object) -> list[str]:
    async with session.post(PATH, json=body(stream=True, **more)) as response:  # type: ignore[arg-type]
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        text = await response.text()
    assert text.endswith("\n\n")
    return [event.removeprefix("data: ") for event in text.split("\n\n")[:-1]]


async def test_streams_in_order_and_ends_with_counts_and_the_mark() -> None:
    async with served(FAST) as (session, _server, _engine):
        events = await events_of(session, tokens=5, stream_options={"include_usage": True})
        chunks = [json.loads(event) for event in events[:-1]]
        async with session.post(PATH, json=body(tokens=5)) as response:
            whole = await response.json()
    assert events[-1] == "[DONE]"
    *tokens, counts = chunks
    assert counts["choices"] == [] and counts["usage"]["completion_tokens"] == 5
    assert counts["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in tokens][-1] == "length"
    assert tokens[0]["choices"][0]["delta"]["role"] == "assistant"
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in tokens[1:])
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["system_fingerprint"] for chunk in chunks} == {"e0"}
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in tokens)
    assert text == whole["choices"][0]["message"]["content"]
    assert whole["choices"][0]["finish_reason"] == "length"


async def test_counts_are_only_told_to_those_who_ask() -> None:
    async with served(FAST) as (session, _server, _engine):
        events = await events_of(session, tokens=2)
    assert all(json.loads(event)["usage"] is None for event in events[:-1])


async def test_the_newer_name_of_the_limit_goes_first() -> None:
    async with served(FAST) as (session, _server, _engine):
        newer = body(tokens=9, max_completion_tokens=3)
        async with session.post(PATH, json=newer) as response:
            assert (await response.json())["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (body(tokens=0), "max_tokens"),
        (body(max_completion_tokens=0), "max_tokens"),
        ({"max_tokens": 3}, "messages"),
        ({"messages": []}, "messages"),
        (body(prompt="word " * 6000), "prompt"),
    ],
)
async def test_a_wrong_field_is_named(wrong: dict[str, object], field: str) -> None:
    async with served(FAST) as (session, _server, engine):
        async with session.post(PATH, json=wrong) as response:
            told = (await response.json())["error"]
        assert response.status == 400
        assert told["param"] == field and told["message"]
        assert engine.stats().running == 0


async def test_a_full_queue_is_told_before_the_stream_begins() -> None:
    async with served(SLOW) as (session, server, _engine):
        asked = await fill(session, server)
        async with session.post(PATH, json=body("one more", stream=True)) as response:
            told = await response.json()
        assert response.status == 503
        assert told["error"]["code"] == "overloaded"
        assert int(response.headers["Retry-After"]) >= 1
        for task in asked:
            task.cancel()


async def fill(session: ClientSession, server: Server) -> list[asyncio.Task[None]]:
    """Three requests that run on the slow engine and two that wait: it has no room for more."""
    asked = []
    for number in range(5):
        asked.append(asyncio.create_task(_read(session, body(f"number {number}", 400))))
        running, waiting = min(number + 1, 3), max(number - 2, 0)
        await eventually(
            lambda r=running, w=waiting: (server.load().running, server.load().waiting) == (r, w),  # type: ignore[misc]
            what=f"{running} running, {waiting} waiting",
        )
    return asked


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_the_engine(*, stream: bool) -> None:
    async with served(SLOW) as (session, server, engine):
        asked = asyncio.create_task(_read(session, body(tokens=2000, stream=stream)))
        await eventually(lambda: engine.stats().kv_blocks_used > 0, what="a running request")
        asked.cancel()
        await eventually(lambda: server.load().requests == 0, what="an empty engine")
        assert engine.stats().kv_blocks_used == 0


async def _read(session: ClientSession, asked: dict[str, object]) -> None:
    async with session.post(PATH, json=asked) as response:
        await response.read()


async def test_an_engine_that_breaks_ends_the_stream_with_an_error() -> None:
    async with (
        served(SLOW) as (session, _server, engine),
        session.post(PATH, json=body(tokens=2000, stream=True)) as response,
    ):
        await response.content.readline()
        await engine.close()
        text = (await response.read()).decode()
    assert text.endswith("data: [DONE]\n\n")
    told = json.loads(text.split("\n\n")[-3].strip().removeprefix("data: "))
    assert told["error"]["code"] == "engine_failed"


async def test_what_routers_read_is_what_the_engine_has() -> None:
    async with served(SLOW) as (session, server, engine):
        asked = await fill(session, server)
        rank = (await _json(session, "/v1/loads?include=core"))["loads"][0]
        assert (rank["num_running_reqs"], rank["num_waiting_reqs"]) == (3, 2)
        assert rank["num_total_reqs"] == 5
        assert rank["max_running_requests"] == 3
        assert rank["num_waiting_uncached_tokens"] > 0
        assert 0 < rank["token_usage"] < 1
        await eventually(lambda: server.load().tokens_a_second > 0, what="a throughput")
        (old,) = await _json(session, "/get_load")
        assert (old["num_reqs"], old["num_waiting_reqs"]) == (5, 2)
        assert old["num_tokens"] >= engine.stats().kv_blocks_used
        async with session.get("/metrics") as response:
            text = await response.text()
        assert 'vllm:num_requests_running{model_name="simulated"} 3' in text
        assert 'vllm:num_requests_waiting{model_name="simulated"} 2' in text
        for task in asked:
            task.cancel()
        await eventually(lambda: server.load().requests == 0, what="an empty engine")
        (old,) = await _json(session, "/get_load")
        assert old["num_tokens"] == 0


async def _json(session: ClientSession, path: str) -> Any:
    async with session.get(path) as response:
        assert response.status == 200
        return await response.json()


@pytest.mark.parametrize(
    "path", ["/health", "/v1/models", "/get_model_info", "/server_info", "/health_generate"]
)
async def test_what_routers_ask_at_registration_is_there(path: str) -> None:
    async with served(FAST) as (session, _server, _engine), session.get(path) as response:
        assert response.status == 200


@given(
    running=st.integers(0, 20),
    waiting=st.lists(st.integers(1, 500), max_size=20),
    blocks=st.integers(0, 100),
)
def test_all_reports_say_the_same(running: int, waiting: list[int], blocks: int) -> None:
    limits = EngineLimits(
        rules="vllm",
        block_size=16,
        kv_blocks=100,
        max_num_seqs=20,
        max_num_batched_tokens=512,
        max_model_len=1600,
    )
    progress = {f"r{number}": Progress("decoding", 5, 1) for number in range(running)}
    progress |= {f"w{number}": Progress("waiting", 0, 0) for number in range(len(waiting))}
    stats = EngineStats(running, len(waiting), blocks, 0, progress=progress)
    lengths = {f"w{number}": tokens for number, tokens in enumerate(waiting)}
    load = Load.of(stats, limits, lengths, 12.5)
    (old,) = msgspec.json.decode(load_reports.get_load(load))
    new = msgspec.json.decode(load_reports.v1_loads(load))["loads"][0]
    assert old["num_tokens"] == blocks * 16 + sum(waiting)
    assert new["num_used_tokens"] == blocks * 16
    assert new["num_waiting_uncached_tokens"] == sum(waiting)
    assert old["num_reqs"] == new["num_total_reqs"] == running + len(waiting)
    assert new["gen_throughput"] == 12.5
    assert f'sglang:token_usage{{model_name="m"}} {blocks / 100:g}' in load_reports.metrics(
        load, "m"
    )


def test_both_sides_count_a_prompt_alike() -> None:
    """Our tagger and the servers give the same prompt the same prefill."""
    from evaluation.rivals.workload import arrivals
    from pipeline.messages import Request, prompt_text
    from tagger.model import LengthModel

    model = LengthModel.load()
    for arrival in arrivals("x", 10, 3, seed=1):
        prompt = prompt_text(Request(id="x", messages=list(arrival.messages)))
        assert wire.count_prompt_tokens(prompt) == pytest.approx(
            model.count_tokens(prompt), rel=0.03
        )
