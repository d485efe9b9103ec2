"""Training rows out of a stack's own traffic, on a real server."""

import pytest

from pipeline.bus import Bus
from pipeline.codec import encode
from pipeline.errors import UsageError
from pipeline.messages import ChatMessage, Request, Result, Usage
from tagger import from_results
from tagger.conversation import Conversation
from tagger.from_results import read_traffic


def words(text: str) -> int:
    return len(text.split())


async def asked(bus: Bus, request: Request, client: str = "c") -> None:
    await bus.jetstream.store(
        bus.subjects.history(client, "m"), encode(request), message_id=f"{client}.{request.id}"
    )


async def answered(bus: Bus, name: str, tokens: int, **changes: object) -> None:
    fields: dict[str, object] = {
        "id": name,
        "client": "c",
        "model": "m",
        "status": "done",
        "attempt": 1,
        "text": "t" * 100,
        "finish_reason": "stop",
        "usage": Usage(prompt_tokens=7, completion_tokens=tokens),
    } | changes
    result = Result(**fields)  # type: ignore[arg-type]
    await bus.jetstream.store(
        bus.subjects.result(result.client, name), encode(result), expect_last=0
    )


async def test_prompts_meet_the_lengths_of_their_answers(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_results, "READ_AT_ONCE", 3)  # so that it takes several rounds
    for number in range(7):
        await asked(bus, Request(id=f"r{number}", prompt=f"prompt {number}"))
        await answered(bus, f"r{number}", 10 + number)
    rows = await read_traffic(bus, words)
    assert [(row.prompt, row.response_tokens) for row in rows] == [
        (f"prompt {number}", 10 + number) for number in range(7)
    ]
    assert rows[0].conversation is None, "a bare prompt claims no history"


async def test_a_chat_is_read_as_the_tagger_reads_it(bus: Bus) -> None:
    messages = [
        ChatMessage(role="user", content="one two"),
        ChatMessage(role="assistant", content="three four five"),
        ChatMessage(role="user", content="go on"),
    ]
    await asked(bus, Request(id="r", messages=messages))
    await answered(bus, "r", 50)
    (row,) = await read_traffic(bus, words)
    assert row.prompt == "go on"
    assert row.conversation == Conversation(2, 5, 3)
    assert not row.first_turn


async def test_what_teaches_nothing_is_left_out(bus: Bus) -> None:
    for name in ("good", "cut", "failed", "unanswered"):
        await asked(bus, Request(id=name, prompt=name))
    await asked(bus, Request(id="good", prompt="of another client"), client="d")
    await answered(bus, "good", 10)
    await answered(bus, "cut", 10, finish_reason="length")
    await answered(bus, "failed", 10, status="error", finish_reason=None)
    await answered(bus, "promptless", 10)
    assert [row.prompt for row in await read_traffic(bus, words)] == ["good"]
    with pytest.raises(UsageError, match="no request"):
        await read_traffic(bus, words, model="another")
