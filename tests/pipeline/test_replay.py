"""Recorded requests again: out of a real HISTORY, into a file and back, and to a fresh stack."""

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.bus import Bus
from pipeline.bus.topology import ensure_topology
from pipeline.client import Client
from pipeline.codec import encode
from pipeline.errors import UsageError
from pipeline.messages import ChatMessage, Request
from pipeline.replay import history
from pipeline.replay.history import Span, follow_original, read_history
from pipeline.replay.plan import ORIGIN, fresh, plan
from pipeline.replay.recorded import Recorded, read_records, write_records
from pipeline.stack import LocalStack, StackSettings

TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
REQUESTS = st.one_of(
    st.builds(
        Request,
        id=st.from_regex(r"[a-z0-9_-]{1,20}", fullmatch=True),
        prompt=TEXT,
        max_tokens=st.none() | st.integers(1, 1000),
        metadata=st.none() | st.dictionaries(TEXT, TEXT, max_size=3),
    ),
    st.builds(
        Request,
        id=st.just("r"),
        messages=st.lists(
            st.builds(ChatMessage, role=st.just("user"), content=TEXT), min_size=1, max_size=3
        ),
    ),
)
RECORDS = st.lists(
    st.builds(
        Recorded,
        at_ms=st.floats(0, 1e13),
        client=st.just("c"),
        model=st.just("default"),
        request=REQUESTS,
    ),
    min_size=1,
    max_size=20,
)


@settings(deadline=None)
@given(RECORDS, st.booleans())
def test_a_file_gives_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, records: list[Recorded], packed: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / ("r.jsonl.gz" if packed else "r.jsonl")
    assert write_records(path, records) == len(records)
    assert read_records(path) == records


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (b'{"at_ms": 1}', "line 2.*client"),
        (b"{", "line 2"),
        (b'{"at_ms": -1, "client": "c", "model": "m", "request": {"id": "r"}}', "at_ms"),
        (b'{"at_ms": 1, "client": "c", "model": "m", "request": {}}', "request"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: bytes, named: str) -> None:
    path = tmp_path / "r.jsonl"
    good = Recorded(at_ms=1, client="c", model="m", request=Request(id="r", prompt="p"))
    path.write_bytes(msgspec.json.encode(good) + b"\n" + line + b"\n")
    with pytest.raises(UsageError, match=named):
        read_records(path)


@pytest.mark.parametrize("data", [b"", b"\n\n"])
def test_an_empty_file_is_said_so(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "r.jsonl").write_bytes(data)
    with pytest.raises(UsageError, match="no request"):
        read_records(tmp_path / "r.jsonl")


@settings(deadline=None)
@given(RECORDS, st.floats(0.01, 1000))
def test_times_are_the_old_ones_against_one_clock(records: list[Recorded], speed: float) -> None:
    requests, offsets = plan(records, "run", speed)
    assert offsets[0] == 0
    assert offsets == sorted(offsets)
    span_s = (max(r.at_ms for r in records) - min(r.at_ms for r in records)) / 1000
    assert offsets[-1] == pytest.approx(span_s / speed)
    assert len({request.id for request in requests}) == len(records)


@settings(deadline=None)
@given(REQUESTS)
def test_only_the_id_is_fresh_and_it_says_whose_it_was(request: Request) -> None:
    again = fresh(Recorded(at_ms=1, client="c", model="m", request=request), "new")
    assert again.metadata is not None
    assert again.metadata[ORIGIN] == f"c.{request.id}"
    kept = {k: v for k, v in again.metadata.items() if k != ORIGIN}
    assert kept == {k: v for k, v in (request.metadata or {}).items() if k != ORIGIN}
    assert msgspec.structs.replace(again, id=request.id, metadata=request.metadata) == request


def test_metadata_without_room_stays_as_it_is() -> None:
    full = {f"k{n}": "v" for n in range(16)}
    record = Recorded(
        at_ms=1, client="c", model="m", request=Request(id="r", prompt="p", metadata=full)
    )
    assert fresh(record, "new").metadata == full


@pytest.mark.parametrize("speed", [0.0, -1.0, float("inf")])
def test_a_speed_that_is_none_is_refused(speed: float) -> None:
    record = Recorded(at_ms=1, client="c", model="m", request=Request(id="r", prompt="p"))
    with pytest.raises(UsageError, match="--speed"):
        plan([record], "run", speed)


# ---------------------------------------------------------------- out of a real stream


async def put(bus: Bus, client: str, count: int, gap_s: float = 0.0) -> None:
    for number in range(count):
        await bus.jetstream.store(
            bus.subjects.history(client, "default"),
            encode(Request(id=f"r{number}", prompt=f"prompt {number}")),
            message_id=f"{client}.{number}",
        )
        await asyncio.sleep(gap_s)


async def test_the_history_is_read_in_order_and_in_part(bus: Bus) -> None:
    await ensure_topology(bus)
    await put(bus, "a", 300)
    await put(bus, "b", 10)
    records = await read_history(bus, Span())
    assert len(records) == 310
    assert [r.at_ms for r in records] == sorted(r.at_ms for r in records)
    assert [r.request.id for r in records[:3]] == ["r0", "r1", "r2"]
    assert {r.client for r in await read_history(bus, Span(client="b"))} == {"b"}
    assert len(await read_history(bus, Span(first_sequence=301))) == 10
    assert len(await read_history(bus, Span(last_sequence=20, limit=7))) == 7
    middle = records[100].at_ms
    assert len(await read_history(bus, Span(since_ms=middle))) in range(205, 211)
    with pytest.raises(UsageError, match="no request"):
        await read_history(bus, Span(until_ms=1.0))


async def test_jetstream_gives_them_out_at_the_old_pace(bus: Bus) -> None:
    await ensure_topology(bus)
    await put(bus, "a", 5, gap_s=0.1)
    loop = asyncio.get_running_loop()
    came = []
    async with asyncio.timeout(10):
        async for offset_s, record in follow_original(bus, Span()):
            came.append((loop.time(), offset_s, record.request.id))
    assert [name for _, _, name in came] == [f"r{n}" for n in range(5)]
    took = came[-1][0] - came[0][0]
    assert took == pytest.approx(came[-1][1] - came[0][1], abs=0.15)
    assert took > 0.35


async def test_at_the_old_pace_a_part_can_be_chosen_and_nothing_is_no_wait(bus: Bus) -> None:
    await ensure_topology(bus)
    await put(bus, "a", 6, gap_s=0.05)
    records = await read_history(bus, Span())

    async def ids(span: Span) -> list[str]:
        async with asyncio.timeout(5):
            return [record.request.id async for _, record in follow_original(bus, span)]

    assert await ids(Span(client="nobody")) == []
    assert await ids(Span(since_ms=records[3].at_ms - 1)) == ["r3", "r4", "r5"]
    assert await ids(Span(until_ms=records[1].at_ms + 1)) == ["r0", "r1"]
    assert await ids(Span(first_sequence=3, last_sequence=4)) == ["r2", "r3"]


async def test_more_than_can_wait_is_told(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "WAITING_MAX", 3)
    await ensure_topology(bus)
    await put(bus, "a", 12)
    with pytest.raises(UsageError, match="too fast"):
        async for _ in follow_original(bus, Span()):
            await asyncio.sleep(0.3)


async def test_garbage_in_the_history_is_passed_over(bus: Bus) -> None:
    await ensure_topology(bus)
    await bus.jetstream.store(bus.subjects.history("a", "m"), b"\xff{", message_id="1")
    await put(bus, "a", 2)
    assert len(await read_history(bus, Span())) == 2


# ---------------------------------------------------------------- to a fresh stack


async def replay(*arguments: str) -> tuple[int, str]:
    """The command as a person runs it: its status, and what it said."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pipeline.cli", "replay", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        told, _ = await process.communicate()
    return process.returncode or 0, told.decode()


@pytest.mark.timeout(200)
async def test_a_burst_is_replayed_to_a_fresh_stack_with_the_same_requests(tmp_path: Path) -> None:
    fast = ("--engine-arg", "time_scale=0.02")
    recorded = str(tmp_path / "day.jsonl.gz")
    async with LocalStack(StackSettings(instances=2, worker_args=fast)) as stack:
        async with await Client.connect(stack.bus_settings, client="shop") as client:
            prompts = {f"q{n}": f"question {n}" for n in range(20)}
            await asyncio.gather(
                *(client.complete(Request(id=i, prompt=p)) for i, p in prompts.items())
            )
        reading = ("--url", stack.url)
        assert (await replay("--record", recorded, *reading))[0] == 0
        status, told = await replay(*reading)
        assert (status, "--same-stack" in told) == (2, True)
        async with LocalStack(StackSettings(instances=2, worker_args=fast)) as other:
            for more in (("--speed", "5"), ("--original",), ("--from", recorded)):
                status, told = await replay(*more, "--to-url", other.url, *reading)
                assert (status, "own lag" in told) == (0, True), told
            bus = await Bus.connect(other.bus_settings, name="test")
            again = await read_history(bus, Span(client="replay"))
            await bus.close()
    assert len(again) == 60
    assert len({record.request.id for record in again}) == 60
    for run in (again[:20], again[20:40], again[40:]):
        assert sorted(r.request.prompt or "" for r in run) == sorted(prompts.values())
        origins = {(r.request.metadata or {})[ORIGIN] for r in run}
        assert origins == {f"shop.{name}" for name in prompts}
