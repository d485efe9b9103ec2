"""Logs of running components: JSON a line, bound to their component, and nobody's text in them."""

import json
import re

from pipeline.client import Client
from pipeline.errors import RequestError
from pipeline.messages import Request
from pipeline.stack import LocalStack, StackSettings

MARK = "xyzzy-plugh"
STACK = StackSettings(
    instances=1,
    seed=1,
    log_level="debug",
    log_format="json",
    tagger_args=("--estimator=length",),
)


async def test_every_line_is_an_event_and_none_has_a_prompt() -> None:
    async with LocalStack(STACK) as stack:
        async with await Client.connect(stack.bus_settings) as client:
            answer = await client.complete(Request(id="good", prompt=f"{MARK}?", max_tokens=9))
            try:  # one that is refused late, whose reason is logged
                await client.complete(Request(id="late", prompt=MARK * 9000, max_tokens=9))
            except RequestError as error:
                refusal = error
        logs = {
            path.stem: path.read_text()
            for path in stack.logs.iterdir()
            if path.stem != "nats"  # the server has a format of its own
        }
    assert refusal.code == "prompt_too_long"
    assert set(logs) == {"tagger-0", "dispatcher-0", "worker-i0", "predictor-i0"}
    words = answer.text.split()[:3]
    for name, text in logs.items():
        assert MARK not in text, name
        assert " ".join(words) not in text, name
        lines = [json.loads(line) for line in text.splitlines()]
        assert lines, name
        for line in lines:
            assert re.fullmatch(r"[a-z][a-z_]+", line["event"]), line
            assert line["component"].startswith(name.partition("-")[0]), line
            assert {"level", "timestamp", "pid"} <= line.keys(), line
