"""Writes down what a real SGLang says, for the tests that run without one:

    .engines/sglang/bin/python -m tests.engines.record_sglang

Two servers after each other: one whose streams repeat the whole answer, one whose do not.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec

from engines.folder import SGLANG_ENVIRONMENT, TINY_LLAMA
from pipeline.child import Child
from tests.workers.sglang_transcript import FOLDER, Exchange, Transcript
from workers.openai_engine.server import Server
from workers.sglang_engine.launch import free_port
from workers.sglang_engine.limits import ServerInfo
from workers.sglang_engine.settings import INCREMENTAL, SGLangSettings

ARGS = (
    "--device cpu --dtype bfloat16 --attention-backend torch_native --sampling-backend pytorch "
    "--disable-overlap-schedule --disable-cuda-graph --disable-radix-cache --sleep-on-idle "
    "--mem-fraction-static 0.1 --max-total-tokens 1280 --page-size 16 --chunked-prefill-size 256 "
    "--context-length 512 --max-running-requests 2 --max-queued-requests 1 --random-seed 0"
)
WHOLE = ("length", "several bytes a letter")
"""Streams that are kept as they were; of others the middle is left out."""
GREEDY = {"temperature": 0.0, "ignore_eos": True}


class Recorder:
    """Asks one server, and keeps what was said."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.exchanges: list[Exchange] = []

    async def get(self, name: str, path: str, keep: tuple[str, ...] = ()) -> None:
        """Of a long answer only the fields in `keep`."""
        async with self._server.session.get(path) as response:
            answer = await response.text()
            if keep:
                told = msgspec.json.decode(answer)
                answer = msgspec.json.encode({one: told[one] for one in keep}).decode()
            self.exchanges.append(Exchange(name, path, None, response.status, answer))

    async def post(self, name: str, path: str, body: dict[str, Any]) -> None:
        async with self._server.session.post(path, json=body) as response:
            answer = await response.text()
            if name not in WHOLE:
                answer = without_middle(answer)
            self.exchanges.append(Exchange(name, path, body, response.status, answer))

    async def generate(self, name: str, *, tokens: int = 8, **more: Any) -> None:
        sampling = {**GREEDY, "max_new_tokens": tokens, **more.pop("sampling", {})}
        asked = {"input_ids": [57, 74, 91, 318, 298], "stream": True, "rid": f"r-{name}", **more}
        await self.post(name, "/generate", {**asked, "sampling_params": sampling})


def without_middle(answer: str) -> str:
    """Of more than six events the first two and the last four: counts go up in any case."""
    events = answer.split("\n\n")
    return "\n\n".join(events if len(events) <= 6 else events[:2] + events[-4:])


async def record(recorder: Recorder) -> None:
    await recorder.get("models", "/v1/models")
    await recorder.get("info", "/server_info", ServerInfo.__struct_fields__)
    await recorder.get("idle", "/v1/loads?include=core")
    await recorder.post("tokens", "/v1/tokenize", {"prompt": "Why is the sky blue?"})
    chat = [{"role": "user", "content": "Why?"}]
    await recorder.post("chat tokens", "/v1/tokenize", {"messages": chat})
    await recorder.generate("length")
    await recorder.generate("several bytes a letter", sampling={"temperature": 1.5}, tokens=40)
    await recorder.generate("too long", input_ids=[9] * 600)
    await recorder.generate("no room", tokens=508)
    await recorder.generate("no prompt", input_ids=[])
    twins = (recorder.generate("twin", tokens=60, rid="same") for _ in range(2))
    await asyncio.gather(*twins)
    running = asyncio.create_task(recorder.generate("aborted", tokens=400))
    await asyncio.sleep(1.0)
    await recorder.get("busy", "/v1/loads?include=core")
    await recorder.post("abort", "/abort_request", {"rid": "r-aborted"})
    await recorder.post("abort of nobody", "/abort_request", {"rid": "nobody"})
    await running
    await asyncio.gather(*(recorder.generate("queue", tokens=60, rid=f"q{n}") for n in range(5)))


async def main() -> None:
    environment = {**os.environ, **SGLANG_ENVIRONMENT}
    for name, incremental in (("whole", False), ("added", True)):
        settings = SGLangSettings(model=str(TINY_LLAMA), args=ARGS)
        port = free_port()
        command = [part for part in settings.command(port) if incremental or part != INCREMENTAL]
        child = Child(command, Path("/tmp") / f"record-sglang-{name}.log", environment)  # noqa: S108
        server = Server(f"http://127.0.0.1:{port}", settings)
        recorder = Recorder(server)
        try:
            await server.wait_serving()
            await record(recorder)
        finally:
            await server.close()
            await child.stop(5.0)
        FOLDER.mkdir(exist_ok=True)
        transcript = msgspec.json.encode(Transcript(incremental, recorder.exchanges))
        written = msgspec.json.format(transcript, indent=1) + b"\n"
        # Where the model lay on the machine that recorded it is nobody's business.
        written = written.replace(str(TINY_LLAMA).encode(), b"/models/tiny-llama")
        (FOLDER / f"{name}.json").write_bytes(written)


if __name__ == "__main__":
    asyncio.run(main())
