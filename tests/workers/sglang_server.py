"""A server with SGLang's own API around the simulated engine, as the adapter meets it. That it
answers as the real one does is what test_sglang_transcripts.py looks at."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from pipeline.errors import DuplicateId, Overloaded, RequestError
from pipeline.messages import Request
from workers.engine import Delta, EngineRequest
from workers.simulated import SimulatedEngine
from workers.simulated_settings import SimulatedSettings

VERSION = "0.5.23"


@dataclass
class Ways:
    """How one server differs from another."""

    incremental: bool = False
    """Events carry what was added; else the whole answer."""
    refuses_outside_streams: bool = False
    """Errors have a status of their own; else they are events under HTTP 200."""
    priority: bool = False
    low_first: bool = False


class FakeSGLang:
    """One server. `bodies` are the generations that were asked for, `aborts` the ids."""

    def __init__(self, settings: SimulatedSettings, ways: Ways) -> None:
        self.engine = SimulatedEngine(settings)
        self.ways = ways
        self.bodies: list[dict[str, Any]] = []
        self.aborts: list[str] = []
        self.stands_still = asyncio.Event()
        """Its scheduler does, behind an HTTP side that answers."""
        self.hangs = asyncio.Event()
        self._live: set[str] = set()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/server_info", self._info)
        app.router.add_get("/v1/loads", self._loads)
        app.router.add_post("/v1/tokenize", self._tokenize)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        return app

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        length = self.engine._limits.max_model_len
        return web.json_response({"data": [{"id": "fake", "max_model_len": length}]})

    async def _info(self, _: web.Request) -> web.Response:
        limits = self.engine._limits
        return web.json_response(
            {
                "served_model_name": "fake",
                "version": VERSION,
                "context_length": limits.max_model_len,
                "max_total_num_tokens": limits.kv_blocks * limits.block_size,
                "page_size": limits.block_size,
                "max_running_requests": limits.max_num_seqs,
                "chunked_prefill_size": limits.max_num_batched_tokens,
                "incremental_streaming_output": self.ways.incremental,
                "enable_priority_scheduling": self.ways.priority,
                "schedule_low_priority_values_first": self.ways.low_first,
            }
        )

    async def _loads(self, _: web.Request) -> web.Response:
        if self.hangs.is_set():
            await asyncio.sleep(60)
        limits, stats = self.engine._limits, self.engine.stats()
        load = {
            "num_running_reqs": stats.running,
            "num_waiting_reqs": stats.waiting,
            "num_used_tokens": stats.kv_blocks_used * limits.block_size,
            "max_total_num_tokens": limits.kv_blocks * limits.block_size,
        }
        return web.json_response({"loads": [load]})

    async def _tokenize(self, http: web.Request) -> web.Response:
        body = await http.json()
        text = body.get("prompt") or " ".join(m["content"] for m in body.get("messages", []))
        ids = [len(word) for word in text.split()]
        return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": 512})

    async def _abort(self, http: web.Request) -> web.Response:
        rid = (await http.json())["rid"]
        self.aborts.append(rid)
        for live in [one for one in self._live if one.startswith(rid)]:
            await self.engine.abort(live)
        return web.Response()

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        self.bodies.append(body)
        rid = body["rid"]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            async with aclosing(self._events(rid, body)) as events:
                async for event in events:
                    if not response.prepared:
                        await response.prepare(http)
                    await response.write(_event(event))
        except RequestError as error:
            status = 503 if isinstance(error, Overloaded) else 400
            told = {"message": error.message, "code": status, "retryable": False}
            if self.ways.refuses_outside_streams:
                return web.json_response({"error": told}, status=status)
            await response.prepare(http)
            if isinstance(error, Overloaded):
                # The real one ends such a stream, as one that was aborted.
                reason = {"type": "abort", "message": error.message, "status_code": 503}
                await response.write(_event({"text": "", "meta_info": {"finish_reason": reason}}))
            else:
                await response.write(_event({"error": told}))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _events(self, rid: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        ids, sampling = body["input_ids"], body["sampling_params"]
        if rid in self._live:
            raise DuplicateId(f"Duplicate request ID detected: {rid}", field="rid")
        request = Request(
            id=rid,
            prompt="x",
            max_tokens=sampling["max_new_tokens"],
            ignore_eos=sampling.get("ignore_eos", False),
        )
        asked = EngineRequest(rid, request, " ".join(map(str, ids)), len(ids))
        text, tokens = "", 0
        last: Delta | None = None
        self._live.add(rid)
        try:
            async with aclosing(self.engine.generate(asked)) as deltas:
                async for last in deltas:
                    if self.stands_still.is_set():
                        await asyncio.sleep(60)
                    text, tokens = text + last.text, tokens + last.tokens
                    yield self._told(text, last, tokens, len(ids))
        finally:
            self._live.discard(rid)
        if last is None or last.finish_reason is None:
            reason = {"type": "abort", "message": "Aborted", "status_code": None}
            yield {"text": "", "meta_info": {"completion_tokens": tokens, "finish_reason": reason}}

    def _told(self, text: str, delta: Delta, tokens: int, prompt_tokens: int) -> dict[str, Any]:
        reason = None if delta.finish_reason is None else {"type": delta.finish_reason}
        return {
            "text": delta.text if self.ways.incremental else text,
            "meta_info": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": tokens,
                "num_retractions": delta.preemptions,
                "finish_reason": reason,
            },
        }


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


@asynccontextmanager
async def served(
    settings: SimulatedSettings, ways: Ways | None = None
) -> AsyncIterator[tuple[FakeSGLang, str]]:
    """A running server and its URL."""
    server = FakeSGLang(settings, ways or Ways())
    await server.engine.start()
    runner = web.AppRunner(
        server.app(), handler_cancellation=True, access_log=None, shutdown_timeout=0.2
    )
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield server, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
        await server.engine.close()
