"""What a real SGLang said, read by the adapter: so that it is held to the real server's words where
there is none."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from pipeline.errors import BadRequest, Overloaded, PromptTooLong, RequestError
from tests.workers.sglang_transcript import Exchange, Transcript, load
from workers.engine import Delta
from workers.openai_engine.load import read_loads
from workers.openai_engine.stream import events
from workers.openai_engine.wire import error_of
from workers.sglang_engine import wire
from workers.sglang_engine.limits import read


@pytest.fixture(params=["whole", "added"])
def transcript(request: pytest.FixtureRequest) -> Transcript:
    return load(request.param)


async def lines_of(exchange: Exchange) -> AsyncIterator[bytes]:
    for line in exchange.answer.encode().splitlines(keepends=True):
        yield line


async def read_stream(transcript: Transcript, exchange: Exchange) -> list[Delta]:
    """Its deltas. Raises the RequestError that it ended with."""
    if exchange.status != 200:
        raise error_of(exchange.status, exchange.answer.encode())
    counted = wire.Counted(incremental=transcript.incremental)
    deltas = []
    async for data in events(lines_of(exchange)):
        delta = counted.take(data)
        deltas += [] if delta is None else [delta]
    assert counted.ended is not None
    if counted.ended.type == wire.ABORT:
        raise wire.error_of_abort(counted.ended)
    return deltas


def only(transcript: Transcript, name: str) -> Exchange:
    (exchange,) = transcript.named(name)
    return exchange


def test_what_the_server_is(transcript: Transcript) -> None:
    info = msgspec.json.decode(only(transcript, "info").answer)
    told = read(info, msgspec.json.decode(only(transcript, "models").answer))
    assert (told.version, told.incremental) == ("0.5.23", transcript.incremental)
    assert (told.limits.kv_blocks, told.limits.block_size, told.limits.max_num_seqs) == (80, 16, 2)
    assert (told.limits.max_num_batched_tokens, told.limits.max_model_len) == (256, 512)
    assert (told.priority_sign, told.unlike) == (0, {})


def test_how_full_it_is(transcript: Transcript) -> None:
    idle = read_loads(msgspec.json.decode(only(transcript, "idle").answer))
    busy = read_loads(msgspec.json.decode(only(transcript, "busy").answer))
    assert (idle.running, idle.waiting, idle.kv_share) == (0, 0, 0.0)
    assert (busy.running, busy.waiting) == (1, 0)


def test_prompts_become_tokens(transcript: Transcript) -> None:
    for name in ("tokens", "chat tokens"):
        ids = wire.decode_tokenized(only(transcript, name).answer.encode()).tokens
        assert len(ids) > 4 and all(number >= 0 for number in ids)


@pytest.mark.parametrize(("name", "tokens"), [("length", 8), ("several bytes a letter", 40)])
async def test_an_answer_adds_up(transcript: Transcript, name: str, tokens: int) -> None:
    exchange = only(transcript, name)
    deltas = await read_stream(transcript, exchange)
    assert sum(delta.tokens for delta in deltas) == tokens
    assert (deltas[-1].finish_reason, deltas[-1].prompt_tokens) == ("length", 5)
    texts = [msgspec.json.decode(data)["text"] async for data in events(lines_of(exchange))]
    whole = "".join(texts) if transcript.incremental else texts[-1]
    assert "".join(delta.text for delta in deltas) == whole != ""


@pytest.mark.parametrize(
    ("name", "kind"),
    [("too long", PromptTooLong), ("no room", PromptTooLong), ("no prompt", BadRequest)],
)
async def test_what_it_refuses(transcript: Transcript, name: str, kind: type[RequestError]) -> None:
    with pytest.raises(kind):
        await read_stream(transcript, only(transcript, name))


async def test_an_id_in_use_is_refused_and_its_holder_goes_on(transcript: Transcript) -> None:
    answered, refused = 0, 0
    for exchange in transcript.named("twin"):
        try:
            answered += sum(delta.tokens for delta in await read_stream(transcript, exchange))
        except BadRequest as error:
            assert "Duplicate" in error.message
            refused += 1
    assert (answered, refused) == (60, 1)


async def test_an_abort_ends_the_stream_and_is_always_accepted(transcript: Transcript) -> None:
    assert [only(transcript, name).status for name in ("abort", "abort of nobody")] == [200, 200]
    with pytest.raises(RequestError, match=r"[Aa]bort"):
        await read_stream(transcript, only(transcript, "aborted"))


async def test_a_full_queue_is_overload(transcript: Transcript) -> None:
    ends: list[str] = []
    for exchange in transcript.named("queue"):
        try:
            deltas = await read_stream(transcript, exchange)
            ends.append(str(sum(delta.tokens for delta in deltas)))
        except Overloaded:
            ends.append("overload")
    assert set(ends) == {"60", "overload"}
