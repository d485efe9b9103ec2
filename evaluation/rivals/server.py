"""An OpenAI-compatible HTTP server around one simulated engine: what routers are put in front of.

    python -m evaluation.rivals.server --name e0 --port-file e0.port --engine-arg time_scale=0.5

The engine is the one that our own workers run, with the same settings, so that routers and our
pipeline are judged on the same steps. A client that goes away aborts its request.
"""

import asyncio
import secrets
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from aiohttp import web

from evaluation.rivals import load_reports, wire
from evaluation.rivals.load_reports import Load, Throughput
from pipeline.errors import RequestError
from pipeline.messages import Request, Usage, prompt_text
from workers.engine import Delta, Engine, EngineReady, EngineRequest
from workers.engines import make_engine

HOST = "127.0.0.1"
BODY_BYTES_MAX = 2 * 1024 * 1024
STOP_GRACE_S = 5.0
JSON = "application/json"


class Server:
    """The routes of one server. Its own state is only how long the prompts in the engine are."""

    def __init__(self, engine: Engine, ready: EngineReady, name: str) -> None:
        self._engine = engine
        self._ready = ready
        self._name = name
        self._prompt_tokens: dict[str, int] = {}
        self._throughput = Throughput()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_post("/v1/chat/completions", self._chat)
        for path, handler in {
            "/health": self._health,
            "/health_generate": self._health,
            "/v1/models": self._models,
            "/get_model_info": self._model_info,
            "/model_info": self._model_info,
            "/get_server_info": self._server_info,
            "/server_info": self._server_info,
            "/get_load": self._get_load,
            "/v1/loads": self._v1_loads,
            "/metrics": self._metrics,
        }.items():
            app.router.add_get(path, handler)
        return app

    def load(self) -> Load:
        """The engine's load at this moment."""
        return Load.of(
            self._engine.stats(),
            self._ready.limits,
            self._prompt_tokens,
            self._throughput.tokens_a_second(),
        )

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        request_id = f"chatcmpl-{secrets.token_hex(8)}"
        try:
            chat, request = wire.read_chat(await http.read(), request_id)
            answer = wire.Answer(request_id, self._ready.model, self._name)
            async with aclosing(self._deltas(request)) as deltas:
                if chat.stream:
                    return await _stream(http, answer, deltas, usage=chat.wants_usage)
                return await _whole(answer, deltas)
        except RequestError as error:
            return _refusal(error)

    async def _deltas(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The engine's answer. Closing it, as a client's disconnect does, aborts the request."""
        prompt = prompt_text(request)
        prompt_tokens = wire.count_prompt_tokens(prompt)
        self._prompt_tokens[request.id] = prompt_tokens
        try:
            engine_request = EngineRequest(request.id, request, prompt, prompt_tokens)
            async with aclosing(self._engine.generate(engine_request)) as deltas:
                async for delta in deltas:
                    self._throughput.add(delta.tokens)
                    yield delta
        finally:
            del self._prompt_tokens[request.id]

    async def _health(self, _http: web.Request) -> web.Response:
        return web.Response(text="")

    async def _models(self, _http: web.Request) -> web.Response:
        model = {
            "id": self._ready.model,
            "object": "model",
            "owned_by": "sglang",  # routers take the kind of engine, and where its load is, from it
            "root": self._ready.model,
            "max_model_len": self._ready.limits.max_model_len,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _model_info(self, _http: web.Request) -> web.Response:
        return web.json_response({"model_path": self._ready.model, "is_generation": True})

    async def _server_info(self, _http: web.Request) -> web.Response:
        limits = self._ready.limits
        told = {
            "model_path": self._ready.model,
            "served_model_name": self._ready.model,
            "tp_size": 1,
            "dp_size": 1,
            "max_running_requests": limits.max_num_seqs,
            "max_total_num_tokens": limits.kv_blocks * limits.block_size,
        }
        return web.json_response(told)

    async def _get_load(self, _http: web.Request) -> web.Response:
        return web.Response(body=load_reports.get_load(self.load()), content_type=JSON)

    async def _v1_loads(self, _http: web.Request) -> web.Response:
        return web.Response(body=load_reports.v1_loads(self.load()), content_type=JSON)

    async def _metrics(self, _http: web.Request) -> web.Response:
        return web.Response(text=load_reports.metrics(self.load(), self._ready.model))


async def _stream(
    http: web.Request, answer: wire.Answer, deltas: AsyncIterator[Delta], *, usage: bool
) -> web.StreamResponse:
    """Server-sent events, one a delta; what is refused is refused before the first."""
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    )
    tokens = 0
    try:
        async for delta in deltas:
            if not tokens:
                await response.prepare(http)
            await response.write(answer.event(delta.text, delta.finish_reason, first=not tokens))
            tokens += delta.tokens
    except RequestError as error:
        if not tokens:
            raise
        await response.write(b"data: " + wire.error_body(error) + b"\n\n")
    else:
        if usage:
            counts = Usage(prompt_tokens=delta.prompt_tokens, completion_tokens=tokens)
            await response.write(answer.usage_event(counts))
    await response.write(wire.DONE)
    await response.write_eof()
    return response


async def _whole(answer: wire.Answer, deltas: AsyncIterator[Delta]) -> web.Response:
    taken = [delta async for delta in deltas]
    last = taken[-1]  # the engine ends in a delta with its reason, or raises
    usage = Usage(
        prompt_tokens=last.prompt_tokens, completion_tokens=sum(delta.tokens for delta in taken)
    )
    text = "".join(delta.text for delta in taken)
    return web.Response(body=answer.whole(text, last.finish_reason, usage), content_type=JSON)


def _refusal(error: RequestError) -> web.Response:
    headers = {}
    if error.retry_after_ms is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after_ms / 1000)))
    status = wire.STATUS_OF_CODE.get(error.code, 500)
    return web.Response(
        status=status, body=wire.error_body(error), content_type=JSON, headers=headers
    )


@asynccontextmanager
async def serving(
    engine: Engine, name: str, *, port: int = 0
) -> AsyncGenerator[tuple[Server, int], None]:
    """A started engine behind HTTP on loopback, and the port; 0 asks for any free one."""
    server = Server(engine, await engine.start(), name)
    runner = web.AppRunner(
        server.app(), handler_cancellation=True, access_log=None, shutdown_timeout=STOP_GRACE_S
    )
    try:
        await runner.setup()
        site = web.TCPSite(runner, HOST, port, reuse_address=True)
        await site.start()
        yield server, runner.addresses[0][1]
    finally:
        await runner.cleanup()
        await engine.close()


async def _serve(engine: Engine, name: str, port: int, port_file: Path | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving(engine, name, port=port) as (_server, bound):
        if port_file is not None:
            # Whole or not at all: somebody waits for it.
            written = port_file.with_suffix(".new")
            written.write_text(str(bound))
            written.replace(port_file)
        await stop.wait()


def main(
    name: Annotated[str, typer.Option(help="Told to clients as `system_fingerprint`.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="On loopback; 0: any.")] = 0,
    port_file: Annotated[Path | None, typer.Option(help="Where the port is written.")] = None,
    engine_arg: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Of the simulated engine.")
    ] = None,
) -> None:
    """Serve one simulated engine until SIGTERM."""
    uvloop.run(_serve(make_engine("simulated", engine_arg or []), name, port, port_file))


if __name__ == "__main__":
    typer.run(main)
