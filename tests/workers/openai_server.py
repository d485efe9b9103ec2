"""A server with the OpenAI API around the simulated engine, as the adapter meets servers: with the
ways of one kind or another."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from pipeline.errors import PromptTooLong, RequestError
from pipeline.messages import ChatMessage, Request, prompt_text
from workers.engine import EngineRequest
from workers.simulated import SimulatedEngine
from workers.simulated_settings import SimulatedSettings

STATUS = {"overloaded": 503, "prompt_too_long": 400, "bad_request": 400}


@dataclass
class Ways:
    """How a kind of server differs."""

    continuous_usage: bool = True
    """Counts in every event, as vLLM and SGLang; else only at the end."""
    refuses_unknown_options: bool = False
    refuses_the_sum: bool = False
    """SGLang: prompt + max_tokens beyond the length is an error, not clipped."""
    errors_in_the_stream: bool = False
    """HTTP 200, and an event with the error."""
    metrics: bool = True
    headers: dict[str, str] = field(default_factory=dict)
    """That every request must have."""


class FakeServer:
    """One server. `bodies` are the generations that were asked for."""

    def __init__(self, settings: SimulatedSettings, ways: Ways) -> None:
        self.engine = SimulatedEngine(settings)
        self.ways = ways
        self.bodies: list[dict[str, Any]] = []
        self.ids: list[str] = []
        self.health = 200
        self.hangs = asyncio.Event()
        self._failing = 0

    def fails_once(self) -> None:
        """The next look at its health finds it ill."""
        self._failing = 1

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/completions", self._generate)
        app.router.add_post("/v1/chat/completions", self._generate)
        return app

    async def _health(self, http: web.Request) -> web.Response:
        for name, value in self.ways.headers.items():
            if http.headers.get(name) != value:
                return web.Response(status=401)
        if self.hangs.is_set():
            await asyncio.sleep(60)
        if self._failing:
            self._failing -= 1
            return web.Response(status=500)
        return web.Response(status=self.health)

    async def _models(self, _: web.Request) -> web.Response:
        length = self.engine._limits.max_model_len
        return web.json_response({"data": [{"id": "fake", "max_model_len": length}]})

    async def _metrics(self, _: web.Request) -> web.Response:
        if not self.ways.metrics:
            return web.Response(status=404)
        limits, stats = self.engine._limits, self.engine.stats()
        share = stats.kv_blocks_used / limits.kv_blocks
        lines = [
            "# HELP other:metric Something else.",
            "# TYPE other:metric counter",
            'other:metric_total{a="b"} 7',
            f'vllm:num_requests_running{{model_name="fake"}} {stats.running}',
            f'vllm:num_requests_waiting{{model_name="fake"}} {stats.waiting}',
            f'vllm:kv_cache_usage_perc{{model_name="fake"}} {share}',
            f"vllm:num_preemptions_total {stats.preemptions}",
            f'vllm:cache_config_info{{block_size="{limits.block_size}",'
            f'num_gpu_blocks="{limits.kv_blocks + 1}"}} 1',
        ]
        return web.Response(text="\n".join(lines) + "\n")

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        self.bodies.append(body)
        self.ids.append(http.headers["X-Request-Id"])
        options = body["stream_options"]
        if self.ways.refuses_unknown_options and "continuous_usage_stats" in options:
            return _refusal(400, "Unknown parameter: 'stream_options.continuous_usage_stats'.")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            async with aclosing(self._events(body, options)) as events:
                async for event in events:
                    if not response.prepared:
                        await response.prepare(http)
                    await response.write(event)
        except RequestError as error:
            status = STATUS.get(error.code, 500)
            if not self.ways.errors_in_the_stream:
                return _refusal(status, error.message)
            told = {"error": {"message": error.message, "code": status}}
            await response.prepare(http)
            await response.write(b"data: " + msgspec.json.encode(told) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _events(
        self, body: dict[str, Any], options: dict[str, Any]
    ) -> AsyncGenerator[bytes, None]:
        chat = "messages" in body
        messages = [ChatMessage(**one) for one in body["messages"]] if chat else None
        request = Request(
            id=self.ids[-1],
            prompt=body.get("prompt"),
            messages=messages,
            max_tokens=body["max_tokens"],
            ignore_eos=body.get("ignore_eos", False),
        )
        prompt = prompt_text(request)
        prompt_tokens = len(prompt.split())
        room = self.engine._limits.max_model_len - prompt_tokens
        if self.ways.refuses_the_sum and 0 < room < body["max_tokens"]:
            raise PromptTooLong(
                "Requested token count exceeds the model's maximum context length of "
                f"{room + prompt_tokens} tokens. You requested a total of "
                f"{prompt_tokens + body['max_tokens']} tokens: {prompt_tokens} tokens from the "
                f"input messages and {body['max_tokens']} tokens for the completion."
            )
        if room < 1:
            raise PromptTooLong(f"This model's maximum context length is {prompt_tokens + room}.")
        tokens = 0
        asked = EngineRequest(request.id, request, prompt, prompt_tokens, body.get("priority", 0))
        async with aclosing(self.engine.generate(asked)) as deltas:
            async for delta in deltas:
                tokens += delta.tokens
                usage = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
                counts = self.ways.continuous_usage and options.get("continuous_usage_stats")
                # A server that counts at the end sends one event a token.
                parts = (
                    [(delta.text, delta.tokens)] if counts else _singly(delta.text, delta.tokens)
                )
                for number, (text, _) in enumerate(parts, 1):
                    ends = delta.finish_reason if number == len(parts) else None
                    choice = {"delta": {"content": text}} if chat else {"text": text}
                    event = {"choices": [{**choice, "finish_reason": ends}]}
                    yield _event({**event, "usage": usage} if counts else event)
        yield _event({"choices": [], "usage": usage})


def _singly(text: str, tokens: int) -> list[tuple[str, int]]:
    """The text in as many parts as it has tokens; the words of the simulated engine begin with a
    space each."""
    words = text.split(" ")
    parts = [word if not n else f" {word}" for n, word in enumerate(words)]
    parts = [part for part in parts if part]
    return [(part, 1) for part in parts] if len(parts) == tokens else [(text, tokens)]


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def _refusal(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)


@asynccontextmanager
async def served(
    settings: SimulatedSettings, ways: Ways | None = None
) -> AsyncIterator[tuple[FakeServer, str]]:
    """A running server and its URL."""
    server = FakeServer(settings, ways or Ways())
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
