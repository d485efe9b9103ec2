"""A worker with the simulated engine on a real bus: streams, results, cancels, drain, fencing."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import msgspec
import pytest

from pipeline.bus import Bus, Lease, Message
from pipeline.codec import decode, encode
from pipeline.conclusion import conclude, find_result
from pipeline.messages import (
    Cancel,
    Decision,
    DispatchedRequest,
    DrainReply,
    Ended,
    Instance,
    LengthEstimate,
    OutputEvent,
    Request,
    Result,
    StateUpdate,
    TaggedRequest,
    wall_ms,
)
from pipeline.process import Stop
from tests.conftest import Connect
from tests.waiting import eventually
from workers.simulated import SimulatedEngine
from workers.simulated_settings import SimulatedSettings
from workers.worker import WorkerSettings, serve_worker

FAST = SimulatedSettings(time_scale=0.02, noise=0.0)
SLOW = SimulatedSettings(time_scale=1.0, noise=0.0)


@dataclass
class Running:
    """A worker under test and what it says."""

    bus: Bus
    stop: Stop
    task: asyncio.Task[str | None]
    engine: SimulatedEngine
    heard: list[Instance] = field(default_factory=list)

    @property
    def boot(self) -> str:
        return self.heard[-1].boot


Begin = Callable[..., Awaitable[Running]]


@pytest.fixture
async def begin(bus: Bus, connect: Connect) -> AsyncIterator[Begin]:
    """`await begin(settings)`: a worker called "a", ready."""
    started: list[Running] = []

    async def start(engine: SimulatedSettings = FAST, grace_s: float = 5.0) -> Running:
        stop = Stop()
        worker_bus, tokens_bus = await connect("worker"), await connect("tokens")
        made = SimulatedEngine(engine)
        task = asyncio.create_task(
            serve_worker(
                worker_bus,
                tokens_bus,
                made,
                WorkerSettings(instance="a", grace_s=grace_s),
                stop,
            )
        )
        running = Running(worker_bus, stop, task, made)
        await bus.subscribe(
            bus.subjects.heartbeat("a"), lambda m: running.heard.append(decode(m.data, Instance))
        )
        started.append(running)
        await eventually(lambda: bool(running.heard), what="the first heartbeat")
        return running

    yield start
    for running in started:
        running.stop.set()
        running.stop.hurry.set()
        await running.task


async def send(bus: Bus, running: Running, request: Request, **more: object) -> None:
    """Into the worker's inbox, as a dispatcher does."""
    fields: dict[str, object] = {
        "id": request.id,
        "client": "c",
        "model": "default",
        "request": msgspec.Raw(encode(request)),
        "prompt_tokens": 8,
        "max_tokens": request.max_tokens,
        "estimate": LengthEstimate(p10=5, p50=10, p90=20, source="test"),
        "deadline_at_ms": wall_ms() + 60_000,
        "attempt": 1,
        **more,
    }
    dispatched = DispatchedRequest(
        **fields,  # type: ignore[arg-type]  # the test's own keywords
        instance="a",
        boot=running.boot,
        decision=Decision(policy="test", reason="test"),
    )
    await bus.jetstream.store(
        bus.subjects.inbox("a", running.boot),
        encode(dispatched),
        message_id=f"{dispatched.key}.{dispatched.attempt}",
    )


async def events_of(bus: Bus, request: str) -> list[OutputEvent]:
    """A list that fills as events come."""
    events: list[OutputEvent] = []

    def note(message: Message) -> None:
        events.append(decode(message.data, OutputEvent))

    await bus.subscribe(bus.subjects.output("c", request), note)
    return events


async def final(events: list[OutputEvent]) -> OutputEvent:
    await eventually(lambda: bool(events) and events[-1].final, what="a final event")
    return events[-1]


async def inbox_is_empty(bus: Bus) -> bool:
    return not await bus.jetstream.read(bus.subjects.inbox_stream, bus.subjects.all_inboxes)


async def test_tokens_stream_in_order_and_the_result_is_stored(bus: Bus, begin: Begin) -> None:
    running = await begin()
    events = await events_of(bus, "r1")
    await send(bus, running, Request(id="r1", prompt="hi", max_tokens=60, ignore_eos=True))
    done = await final(events)
    assert done.event == "done"
    assert done.finish_reason == "length"
    assert done.usage is not None
    assert done.usage.completion_tokens == 60
    assert [event.sequence for event in events] == list(range(len(events)))
    assert sum(event.tokens for event in events) == 60
    result = await find_result(bus, "c", "r1")
    assert result is not None
    assert result.text == "".join(event.text for event in events)
    assert (result.sequence, result.instance) == (done.sequence, "a")
    assert result.trace.first_token_at_ms is not None
    await eventually(lambda: inbox_is_empty(bus), what="the inbox message acknowledged")


async def test_later_tokens_are_joined(bus: Bus, begin: Begin) -> None:
    running = await begin()  # a step of half a millisecond
    events = await events_of(bus, "r1")
    await send(bus, running, Request(id="r1", prompt="hi", max_tokens=200, ignore_eos=True))
    await final(events)
    assert events[0].tokens <= 3, "the first token is not held back"
    assert len(events) < 60


async def test_without_streaming_the_final_event_carries_the_text(bus: Bus, begin: Begin) -> None:
    running = await begin()
    events = await events_of(bus, "r1")
    request = Request(id="r1", prompt="hi", max_tokens=5, ignore_eos=True, stream=False)
    await send(bus, running, request)
    done = await final(events)
    assert len(events) == 1
    result = await find_result(bus, "c", "r1")
    assert result is not None
    assert done.text == result.text != ""


async def test_a_stored_result_is_repeated_not_run_again(bus: Bus, begin: Begin) -> None:
    running = await begin()
    stored = Result(id="r1", client="c", model="default", status="done", attempt=1, text="before")
    await conclude(bus, stored)
    events = await events_of(bus, "r1")
    await send(bus, running, Request(id="r1", prompt="hi"))
    done = await final(events)
    assert len(events) == 1
    assert done.attempt == 1
    assert await find_result(bus, "c", "r1") == stored
    await eventually(lambda: inbox_is_empty(bus), what="the inbox message acknowledged")


async def test_a_later_attempt_says_restart_first(bus: Bus, begin: Begin) -> None:
    running = await begin()
    events = await events_of(bus, "r1")
    await send(bus, running, Request(id="r1", prompt="hi", max_tokens=3), attempt=2)
    await final(events)
    assert events[0].event == "restart"
    assert {event.attempt for event in events} == {2}


async def test_a_prompt_beyond_the_models_length_is_an_error(bus: Bus, begin: Begin) -> None:
    running = await begin()
    events = await events_of(bus, "r1")
    await send(bus, running, Request(id="r1", prompt="long"), prompt_tokens=5000)
    error = (await final(events)).error
    assert error is not None
    assert (error.code, error.field) == ("prompt_too_long", "prompt")
    assert error.limit


async def test_max_tokens_beyond_the_room_is_clipped_to_length(bus: Bus, begin: Begin) -> None:
    running = await begin(SimulatedSettings(time_scale=0, max_model_len=64))
    events = await events_of(bus, "r1")
    request = Request(id="r1", prompt="hi", max_tokens=5000, ignore_eos=True)
    await send(bus, running, request)
    done = await final(events)
    assert done.finish_reason == "length"
    assert done.usage is not None
    assert done.usage.completion_tokens < 64


async def test_a_cancel_ends_it_and_frees_the_blocks(bus: Bus, begin: Begin) -> None:
    running = await begin(SLOW)
    events = await events_of(bus, "r1")
    await send(bus, running, Request(id="r1", prompt="hi", max_tokens=4000, ignore_eos=True))
    await eventually(lambda: len(events) > 0, what="the first token")
    await bus.jetstream.store(
        bus.subjects.cancel("c", "r1"), encode(Cancel(id="r1")), message_id="cancel"
    )
    last = await final(events)
    assert last.error is not None
    assert last.error.code == "cancelled"
    await eventually(lambda: running.heard[-1].kv_blocks_used == 0, what="the blocks freed")


async def test_a_deadline_ends_generation(bus: Bus, begin: Begin) -> None:
    running = await begin(SLOW)
    events = await events_of(bus, "r1")
    request = Request(id="r1", prompt="hi", max_tokens=4000, ignore_eos=True)
    await send(bus, running, request, deadline_at_ms=wall_ms() + 300)
    last = await final(events)
    assert last.error is not None
    assert last.error.code == "deadline_exceeded"
    result = await find_result(bus, "c", "r1")
    assert result is not None
    assert result.text, "what was generated is kept"


async def test_garbage_in_the_inbox_is_buried(bus: Bus, begin: Begin) -> None:
    running = await begin()
    await bus.jetstream.store(bus.subjects.inbox("a", running.boot), b"garbage", message_id="g")
    events = await events_of(bus, "r1")
    await send(bus, running, Request(id="r1", prompt="hi", max_tokens=3))
    assert (await final(events)).event == "done"
    assert await bus.jetstream.read(bus.subjects.dead_stream, "astrolabe.dead.worker")


async def test_no_more_is_pulled_than_the_engine_soon_takes(bus: Bus, begin: Begin) -> None:
    running = await begin(SimulatedSettings(time_scale=1.0, max_num_seqs=4))
    for number in range(20):
        request = Request(id=f"r{number}", prompt="hi", max_tokens=4000, ignore_eos=True)
        await send(bus, running, request)
    await eventually(lambda: running.heard[-1].inbox_pending == 14, what="14 left in the inbox")
    assert running.heard[-1].running + running.heard[-1].waiting == 6


async def test_the_predictor_hears_of_arrivals_and_ends(bus: Bus, begin: Begin) -> None:
    updates: list[StateUpdate] = []
    await bus.subscribe(
        bus.subjects.state("a"),
        lambda m: updates.append(msgspec.msgpack.decode(m.data, type=StateUpdate)),
    )
    running = await begin(SLOW)
    sent_at = time.monotonic()
    await send(bus, running, Request(id="r1", prompt="hi", max_tokens=20, ignore_eos=True))
    await eventually(lambda: any(u.requests for u in updates), what="the request in the state")
    await eventually(lambda: bool(updates[-1].ended), what="its end in the state")
    assert updates[-1].requests == []
    (ended,) = updates[-1].ended
    assert (ended.key, ended.outcome) == ("c.r1", "length")
    assert ended.ttft_ms is not None
    assert 0 <= ended.waited_ms <= ended.ttft_ms < ended.e2e_ms
    assert 20 * 20 < ended.e2e_ms < (time.monotonic() - sent_at) * 1000, "a step takes over 20 ms"
    sequences = [update.sequence for update in updates]
    assert sequences == sorted(set(sequences))


async def test_the_predictor_hears_how_each_ended(bus: Bus, begin: Begin) -> None:
    told: dict[str, Ended] = {}

    def note(message: Message) -> None:
        update = msgspec.msgpack.decode(message.data, type=StateUpdate)
        told.update({ended.key: ended for ended in update.ended})

    await bus.subscribe(bus.subjects.state("a"), note)
    running = await begin(SLOW, grace_s=600)
    endless = {"prompt": "hi", "max_tokens": 4000, "ignore_eos": True}
    natural = Request(id="stopped", prompt="hi", metadata={"response_tokens": "3"})
    await send(bus, running, natural)
    await send(bus, running, Request(id="long", prompt="hi"), prompt_tokens=5000)
    await send(bus, running, Request(id="cut", prompt="hi", max_tokens=2, ignore_eos=True))
    late = Request(id="late", **endless)  # type: ignore[arg-type]  # the test's own keywords
    await send(bus, running, late, deadline_at_ms=wall_ms() + 200)
    for name in ("cancelled", "unfinished"):
        request = Request(id=name, **endless)  # type: ignore[arg-type]
        await send(bus, running, request)
    await eventually(lambda: running.heard[-1].running >= 2, what="work")
    await bus.jetstream.store(
        bus.subjects.cancel("c", "cancelled"), encode(Cancel(id="cancelled")), message_id="cancel"
    )
    await eventually(lambda: len(told) == 5, what="five ends")
    running.stop.set()
    running.stop.hurry.set()
    await running.task
    outcomes = {key.removeprefix("c."): ended.outcome for key, ended in told.items()}
    outcomes.pop("unfinished", None)  # the last state may be out before it was handed back
    assert outcomes == {
        "stopped": "stop",
        "long": "failed",
        "cut": "length",
        "late": "failed",
        "cancelled": "cancelled",
    }


async def test_the_predictor_hears_what_the_engines_admission_goes_by(
    bus: Bus, begin: Begin
) -> None:
    updates: list[StateUpdate] = []
    await bus.subscribe(
        bus.subjects.state("a"),
        lambda m: updates.append(msgspec.msgpack.decode(m.data, type=StateUpdate)),
    )
    running = await begin(SimulatedSettings(rules="sglang", time_scale=0.02, max_num_seqs=1))
    assert running.heard[-1].limits.rules == "sglang"
    for key in ("r1", "r2"):
        request = Request(id=key, prompt="hi", max_tokens=400, ignore_eos=True)
        await send(bus, running, request)
    await eventually(
        lambda: any(u.admission is not None and u.admission.batch_full for u in updates),
        what="a full batch in the state",
    )
    await eventually(
        lambda: {"c.r1", "c.r2"} <= {ended.key for ended in updates[-1].ended}, what="their ends"
    )
    assert min(u.admission.new_token_ratio for u in updates if u.admission is not None) < 0.7


async def test_failure_9_a_stopped_worker_finishes_what_runs_and_hands_back_the_rest(
    bus: Bus, begin: Begin
) -> None:
    running = await begin(SimulatedSettings(time_scale=0.2, max_num_seqs=2))
    for number in range(8):
        request = Request(id=f"r{number}", prompt="hi", max_tokens=150, ignore_eos=True)
        await send(bus, running, request)
    await eventually(lambda: bool(running.heard[-1].running), what="work")
    running.stop.set()
    await running.task
    done = [n for n in range(8) if await find_result(bus, "c", f"r{n}") is not None]
    handed_back = await _tagged(bus)
    assert len(done) + len(handed_back) == 8
    assert len(done) >= 2
    assert handed_back
    assert {request.attempt for request in handed_back} == {2}
    assert {request.crashes for request in handed_back} == {0}
    assert await inbox_is_empty(bus)
    assert running.heard[-1].state == "dead", "it said goodbye"


async def test_a_second_signal_hands_back_at_once(bus: Bus, begin: Begin) -> None:
    running = await begin(SLOW, grace_s=600)
    await send(bus, running, Request(id="r1", prompt="hi", max_tokens=4000, ignore_eos=True))
    await eventually(lambda: running.heard[-1].running == 1, what="work")
    running.stop.set()
    running.stop.hurry.set()
    async with asyncio.timeout(5):
        await running.task
    (request,) = await _tagged(bus)
    assert (request.id, request.attempt) == ("r1", 2)


async def test_an_operator_drains_it_over_the_bus(bus: Bus, begin: Begin) -> None:
    running = await begin(SLOW, grace_s=0.2)
    await send(bus, running, Request(id="r1", prompt="hi", max_tokens=4000, ignore_eos=True))
    await eventually(lambda: running.heard[-1].running == 1, what="work")
    reply = await bus.request(bus.subjects.drain("a"), b"", timeout_s=2)
    assert decode(reply.data, DrainReply) == DrainReply(instance="a", in_hand=1)
    async with asyncio.timeout(10):
        assert await running.task is None
    (request,) = await _tagged(bus)
    assert (request.id, request.crashes) == ("r1", 0)
    assert running.heard[-1].state == "dead", "it said goodbye"


async def test_an_engine_that_breaks_ends_the_worker_and_loses_nothing(
    bus: Bus, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await begin(SimulatedSettings(time_scale=1.0, max_num_seqs=2), grace_s=600)
    for number in range(8):
        request = Request(id=f"r{number}", prompt="hi", max_tokens=4000, ignore_eos=True)
        await send(bus, running, request)
    await eventually(lambda: running.heard[-1].running == 2, what="work")

    def broken() -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(running.engine._scheduler, "step", broken)
    async with asyncio.timeout(10):
        reason = await running.task
    assert reason is not None
    assert "out of memory" in reason
    handed_back = {request.id: request for request in await _tagged(bus)}
    assert len(handed_back) == 8
    assert {request.attempt for request in handed_back.values()} == {2}
    assert handed_back["r0"].crashes == 1, "what the engine held counts as a crash"
    assert handed_back["r7"].crashes == 0, "what nobody had begun does not"
    assert await inbox_is_empty(bus)
    assert running.heard[-1].state == "dead", "it said goodbye"


async def test_what_comes_to_an_engine_that_is_down_has_not_crashed(
    bus: Bus, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As between an engine's death and the moment when its worker notices.
    running = await begin(FAST, grace_s=600)
    monkeypatch.setattr(running.engine, "_down", "it died")
    for number in range(8):
        await send(bus, running, Request(id=f"r{number}", prompt="hi", max_tokens=10))
    await asyncio.sleep(0.5)
    assert not await _tagged(bus), "given back now they would come here again"
    running.engine._failed.set()
    async with asyncio.timeout(10):
        assert await running.task == "it died"
    handed_back = await _tagged(bus)
    assert len(handed_back) == 8
    assert {request.crashes for request in handed_back} == {0}
    assert await inbox_is_empty(bus)


async def _tagged(bus: Bus) -> list[TaggedRequest]:
    stored = await bus.jetstream.read(bus.subjects.tagged_stream, "astrolabe.tagged.*.*")
    return [decode(message.data, TaggedRequest) for message in stored]


async def test_a_worker_that_was_called_dead_stops_speaking_and_boots_anew(
    bus: Bus, begin: Begin
) -> None:
    running = await begin(SLOW)
    first = running.boot
    events = await events_of(bus, "r1")
    await send(bus, running, Request(id="r1", prompt="hi", max_tokens=4000, ignore_eos=True))
    await eventually(lambda: len(events) > 0, what="the first token")
    lease, _ = await Lease.find(bus, bus.subjects.lease_key("a", first))
    await lease.write(b'{"state":"dead"}')
    await eventually(lambda: running.boot != first, what="a new boot")
    await asyncio.sleep(0.2)
    heard = len(events)
    await asyncio.sleep(0.3)
    assert len(events) == heard, "the old boot is silent"
    assert not events[-1].final
    assert await find_result(bus, "c", "r1") is None
    assert not await inbox_is_empty(bus), "the rescuer moves it, not the dead"
    again = await events_of(bus, "r2")
    await send(bus, running, Request(id="r2", prompt="hi", max_tokens=3))
    assert (await final(again)).event == "done"


async def test_a_new_worker_of_the_same_name_ends_the_old_boot(bus: Bus, begin: Begin) -> None:
    first = await begin()
    old = first.boot
    second = await begin()
    await eventually(lambda: second.boot != old, what="another boot")
