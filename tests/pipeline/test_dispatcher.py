"""The dispatcher on a real bus, with instances that exist on the bus only."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec
import pytest

from pipeline import fleet as fleet_module
from pipeline.bus import Bus
from pipeline.codec import decode, encode
from pipeline.conclusion import find_result
from pipeline.dispatcher import Dispatcher, DispatcherSettings
from pipeline.messages import (
    Cancel,
    Candidate,
    Decision,
    DispatchedRequest,
    Load,
    Request,
    StateUpdate,
    TaggedRequest,
    wall_ms,
)
from pipeline.process import Stop
from predictor.service import Predictor, PredictorSettings
from predictor.step_time import DEFAULT_PROFILE, PROFILES
from tests.pipeline.fakes import LIMITS, FakeInstance, put, tagged
from tests.waiting import eventually

Start = Callable[..., Awaitable[Dispatcher]]


@pytest.fixture
async def start(bus: Bus) -> AsyncIterator[Start]:
    """`await start()`: one more dispatcher, on the test's bus, stopped after the test."""
    stop = Stop()
    running: list[asyncio.Task[None]] = []

    async def begin(policy: str = "power_of_two", timeout_ms: float = 200) -> Dispatcher:
        settings = DispatcherSettings(policy=policy, probe_timeout_ms=timeout_ms, seed=1)
        made = Dispatcher(bus, settings)
        running.append(asyncio.create_task(made.serve(stop)))
        await asyncio.sleep(0.05)
        return made

    yield begin
    stop.set()
    await asyncio.gather(*running)


async def inbox(bus: Bus, instance: str = "*") -> list[DispatchedRequest]:
    stored = await bus.jetstream.read(bus.subjects.inbox_stream, bus.subjects.inbox(instance, "*"))
    return [decode(message.data, DispatchedRequest) for message in stored]


async def dispatched(bus: Bus, count: int = 1, within_s: float = 5) -> list[DispatchedRequest]:
    async with asyncio.timeout(within_s):
        while len(found := await inbox(bus)) < count:
            await asyncio.sleep(0.01)
    return found


def dispatch(request: TaggedRequest, instance: FakeInstance) -> DispatchedRequest:
    """As if a dispatcher had chosen the instance."""
    return DispatchedRequest(
        **{field: getattr(request, field) for field in TaggedRequest.__struct_fields__},
        instance=instance.name,
        boot=instance.boot,
        decision=Decision(policy="test", reason="test"),
    )


async def put_into_inbox(bus: Bus, request: TaggedRequest, instance: FakeInstance) -> None:
    await bus.jetstream.store(
        bus.subjects.inbox(instance.name, instance.boot),
        encode(dispatch(request, instance)),
        message_id=f"{request.key}.{request.attempt}.test",
    )


async def test_the_cheaper_of_the_two_gets_it_and_the_decision_is_recorded(
    bus: Bus, start: Start
) -> None:
    await FakeInstance(bus, "dear", cost=900).start()
    await FakeInstance(bus, "cheap", cost=100).start()
    await start()
    await put(bus, tagged())
    (request,) = await dispatched(bus)
    assert (request.instance, request.boot) == ("cheap", "b1")
    assert request.decision.policy == "power_of_two"
    assert not request.decision.fallback
    costs = {c.instance: c.prediction.cost for c in request.decision.candidates if c.prediction}
    assert costs == {"dear": 900, "cheap": 100}
    trace = request.trace
    assert trace.dispatcher_received_at_ms is not None
    assert trace.probed_at_ms is not None
    assert trace.dispatched_at_ms is not None
    assert trace.dispatcher_received_at_ms <= trace.probed_at_ms <= trace.dispatched_at_ms
    await eventually(lambda: _empty(bus), what="TAGGED acknowledged")


async def _empty(bus: Bus) -> bool:
    return not await bus.jetstream.read(bus.subjects.tagged_stream, "astrolabe.tagged.*.*")


async def test_a_silent_predictor_is_a_candidate_less(bus: Bus, start: Start) -> None:
    await FakeInstance(bus, "mute", answers=False).start()
    await FakeInstance(bus, "cheap", cost=1e9).start()
    await start(timeout_ms=50)
    await put(bus, tagged())
    (request,) = await dispatched(bus)
    assert request.instance == "cheap"
    outcomes = {c.instance: c.outcome for c in request.decision.candidates}
    assert outcomes == {"mute": "timeout", "cheap": "predicted"}


async def test_one_that_refuses_a_request_is_asked_about_the_next(bus: Bus, start: Start) -> None:
    small = await FakeInstance(bus, "small", refuses=True).start()
    large = await FakeInstance(bus, "large").start()
    await start()
    for number in range(3):
        await put(bus, tagged(f"r{number}"))
        requests = await dispatched(bus, number + 1)
    assert {request.instance for request in requests} == {"large"}
    assert len(small.probes) == len(large.probes) == 3
    for request in requests:
        outcomes = [(c.instance, c.outcome) for c in request.decision.candidates]
        assert outcomes == [("large", "predicted"), ("small", "refused")]


async def test_without_any_predictor_the_count_in_flight_decides(bus: Bus, start: Start) -> None:
    await FakeInstance(bus, "full", in_flight=9).start(predictor=False)
    await FakeInstance(bus, "free", in_flight=1).start(predictor=False)
    await start()
    await put(bus, tagged())
    (request,) = await dispatched(bus)
    assert request.instance == "free"
    assert request.decision.fallback
    assert {c.outcome for c in request.decision.candidates} == {"failed"}


async def test_a_policy_that_needs_no_probe_sends_none(bus: Bus, start: Start) -> None:
    one = await FakeInstance(bus, "a", in_flight=3).start()
    two = await FakeInstance(bus, "b", in_flight=1).start()
    await start(policy="least_outstanding")
    await put(bus, tagged())
    (request,) = await dispatched(bus)
    assert request.instance == "b"
    assert not one.probes
    assert not two.probes
    assert Candidate(instance="a", outcome="not_probed", in_flight=3) in request.decision.candidates


def a_load(running: int, free: int) -> Load:
    return Load(
        running=running,
        waiting=0,
        kv_blocks_free=free,
        waiting_prompt_blocks=0,
        outstanding_tokens=100 * running,
        prefill_tokens_waiting=0,
    )


async def test_a_rule_of_loads_asks_everybody_and_records_what_they_said(
    bus: Bus, start: Start
) -> None:
    fakes = [
        await FakeInstance(bus, "busy", cost=1, load=a_load(8, 100)).start(),
        await FakeInstance(bus, "free", cost=9, load=a_load(2, 80)).start(),
        await FakeInstance(bus, "full", cost=1, load=a_load(8, 0)).start(),
        await FakeInstance(bus, "mute", cost=1, answers=False).start(),
    ]
    await start(policy="infaas", timeout_ms=50)
    await put(bus, tagged())
    (request,) = await dispatched(bus)
    assert request.instance == "free", "-80/2 against -100/8, whatever a simulation would cost"
    assert [[probe.kind for probe in fake.probes] for fake in fakes] == [["load"]] * 4
    assert [(c.instance, c.outcome, c.load) for c in request.decision.candidates] == [
        ("free", "reported", a_load(2, 80)),
        ("busy", "reported", a_load(8, 100)),
        ("full", "reported", a_load(8, 0)),
        ("mute", "timeout", None),
    ]
    assert all(candidate.prediction is None for candidate in request.decision.candidates)
    assert (request.decision.policy, request.decision.fallback) == ("infaas", False)


async def test_the_record_of_a_large_fleet_is_its_best(bus: Bus, start: Start) -> None:
    for number in range(20):
        await FakeInstance(bus, f"i{number}", cost=float((number - 7) ** 2)).start()
    await start(policy="fan_out")
    await put(bus, tagged())
    (request,) = await dispatched(bus)
    recorded = [candidate.instance for candidate in request.decision.candidates]
    assert len(recorded) == 16
    assert recorded[0] == request.instance == "i7"
    assert set(recorded[1:3]) == {"i6", "i8"}


async def test_llumnix_places_by_what_real_predictors_know_of_requests_on_their_way(
    bus: Bus, start: Start
) -> None:
    """Nothing reaches an engine here: only what INBOX stored tells the instances apart."""
    stop = asyncio.Event()
    names = ("a", "b", "c")
    serving = []
    for name in names:
        await FakeInstance(bus, name).start(predictor=False)
        predictor = Predictor(bus, PredictorSettings(instance=name))
        serving.append(asyncio.create_task(predictor.serve(stop)))
    telling = asyncio.create_task(_tell_idle(bus, names))
    await asyncio.sleep(0.1)
    await start(policy="llumnix", timeout_ms=2000)
    for number in range(12):
        await put(bus, tagged(f"r{number}"))
        requests = await dispatched(bus, number + 1)
    assert Counter(request.instance for request in requests) == {"a": 4, "b": 4, "c": 4}
    told = [c.load for request in requests for c in request.decision.candidates]
    assert all(load is not None and load.running == 0 for load in told)
    assert {load.waiting for load in told if load is not None} == {0, 1, 2, 3, 4}
    telling.cancel()
    stop.set()
    await asyncio.gather(*serving)


async def _tell_idle(bus: Bus, names: Sequence[str]) -> None:
    """As workers whose engines are idle and whose inboxes are full of what they never take."""
    for sequence in itertools.count(1):
        for name in names:
            state = StateUpdate(
                instance=name,
                boot="b1",
                sequence=sequence,
                sent_at_ms=wall_ms(),
                limits=LIMITS,
                step_time=PROFILES[DEFAULT_PROFILE],
                requests=[],
                finished=[],
            )
            await bus.publish(bus.subjects.state(name), msgspec.msgpack.encode(state))
        await asyncio.sleep(0.5)


async def test_min_qpm_sends_as_many_to_each_and_asks_nobody(bus: Bus, start: Start) -> None:
    fakes = [
        await FakeInstance(bus, name, in_flight=count).start()
        for name, count in (("a", 0), ("b", 50), ("c", 5))
    ]
    await start(policy="min_qpm")
    await asyncio.gather(*(put(bus, tagged(f"r{number}")) for number in range(12)))
    requests = await dispatched(bus, 12)
    assert Counter(request.instance for request in requests) == {"a": 4, "b": 4, "c": 4}
    assert not any(fake.probes for fake in fakes)


async def test_an_instance_that_joins_late_gets_what_waits(bus: Bus, start: Start) -> None:
    await start()
    await put(bus, tagged())
    await asyncio.sleep(0.3)
    await FakeInstance(bus, "late").start()
    (request,) = await dispatched(bus, within_s=3)
    assert request.instance == "late"


async def test_a_model_that_nobody_serves_is_an_error_that_names_those_served(
    bus: Bus, start: Start
) -> None:
    await FakeInstance(bus, "a", model="org/llama").start()
    await start()
    await put(bus, tagged(model="gpt"))
    await eventually(lambda: _has_result(bus), what="a result")
    result = await find_result(bus, "c", "r1")
    assert result is not None
    assert result.error is not None
    assert result.error.code == "model_not_found"
    assert result.error.field == "model"
    assert result.error.limit == "org_llama"


async def _has_result(bus: Bus) -> bool:
    return await find_result(bus, "c", "r1") is not None


async def test_a_late_request_is_answered_not_placed(bus: Bus, start: Start) -> None:
    await FakeInstance(bus, "a").start()
    await start()
    await put(bus, tagged(deadline_at_ms=wall_ms() - 1))
    await eventually(lambda: _has_result(bus), what="a result")
    assert await inbox(bus) == []


async def test_a_cancelled_request_is_answered_not_placed(bus: Bus, start: Start) -> None:
    await FakeInstance(bus, "a").start()
    await bus.jetstream.store(
        bus.subjects.cancel("c", "r1"), encode(Cancel(id="r1")), message_id="x"
    )
    await start()
    await put(bus, tagged())
    await eventually(lambda: _has_result(bus), what="a result")
    assert await inbox(bus) == []


async def test_garbage_is_buried_and_does_not_stop_the_next(bus: Bus, start: Start) -> None:
    await FakeInstance(bus, "a").start()
    await start()
    await bus.jetstream.store(bus.subjects.tagged("default", "c"), b"garbage", message_id="g")
    await put(bus, tagged())
    assert len(await dispatched(bus)) == 1
    buried = await bus.jetstream.read(bus.subjects.dead_stream, "astrolabe.dead.dispatcher")
    assert [message.data for message in buried] == [b"garbage"]
    assert "JSON" in buried[0].headers["Astrolabe-Reason"]


async def test_a_full_inbox_means_the_next_in_order(bus: Bus, start: Start) -> None:
    cheap = await FakeInstance(bus, "cheap", cost=1).start()
    await FakeInstance(bus, "dear", cost=2).start()
    await asyncio.gather(
        *(
            bus.jetstream.store(bus.subjects.inbox("cheap", "b1"), b"x", message_id=f"f{n}")
            for n in range(1024)
        )
    )
    await start()
    await put(bus, tagged())
    async with asyncio.timeout(5):
        while not (found := await inbox(bus, "dear")):
            await asyncio.sleep(0.01)
    assert found[0].instance == "dear"
    cheap.die()


async def test_two_dispatchers_share_the_work_without_configuration(bus: Bus, start: Start) -> None:
    await FakeInstance(bus, "a").start()
    await FakeInstance(bus, "b").start()
    await start()
    await start()
    await asyncio.gather(*(put(bus, tagged(f"r{n}")) for n in range(60)))
    requests = await dispatched(bus, 60)
    assert sorted(request.id for request in requests) == sorted(f"r{n}" for n in range(60))


@pytest.fixture
def quick_judgement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "GRACE_S", 0.5)
    monkeypatch.setattr(fleet_module, "LIVENESS_S", 1.0)


@pytest.mark.usefixtures("quick_judgement")
async def test_a_dead_instances_inbox_is_moved_once_by_several_rescuers(
    bus: Bus, start: Start
) -> None:
    dead = await FakeInstance(bus, "dead").start()
    for number in range(5):
        await put_into_inbox(bus, tagged(f"r{number}"), dead)
    dead.die()
    await asyncio.sleep(1.1)
    await FakeInstance(bus, "alive").start()
    await start()
    await start()
    async with asyncio.timeout(10):
        while len(found := await inbox(bus, "alive")) < 5 or await inbox(bus, "dead"):
            await asyncio.sleep(0.02)
    assert sorted(request.id for request in found) == [f"r{n}" for n in range(5)]
    assert {request.attempt for request in found} == {2}
    assert {request.crashes for request in found} == {0}, "nobody had begun with them"


@pytest.mark.usefixtures("quick_judgement")
async def test_a_living_instance_keeps_its_inbox(bus: Bus, start: Start) -> None:
    alive = await FakeInstance(bus, "alive").start()
    await put_into_inbox(bus, tagged(), alive)
    await start()
    await asyncio.sleep(3)
    (request,) = await inbox(bus)
    assert (request.instance, request.attempt) == ("alive", 1)


@pytest.mark.usefixtures("quick_judgement")
async def test_failure_8_the_third_crash_ends_a_request(bus: Bus, start: Start) -> None:
    from pipeline.bus import WorkQueue
    from pipeline.bus.topology import inbox_consumer

    dead = await FakeInstance(bus, "dead").start()
    await put_into_inbox(bus, tagged(crashes=2, attempt=3), dead)
    taken = asyncio.Event()

    async def take_and_hang(delivery: object) -> None:
        taken.set()
        await asyncio.sleep(3600)

    queue = WorkQueue(bus, inbox_consumer(bus.subjects, "dead", "b1"), take_and_hang, in_hand_max=1)
    pulling = asyncio.create_task(queue.run())
    await taken.wait()
    dead.die()
    await start()
    await eventually(lambda: _has_result(bus), what="a result", within_s=15)
    result = await find_result(bus, "c", "r1")
    assert result is not None
    assert result.error is not None
    assert result.error.code == "worker_lost"
    assert await bus.jetstream.read(bus.subjects.dead_stream, "astrolabe.dead.inbox")
    pulling.cancel()
    await queue.stop(0)


async def test_without_a_tagger_the_dispatcher_tags_within_two_seconds(
    bus: Bus, start: Start
) -> None:
    await FakeInstance(bus, "a").start()
    await start()
    await bus.jetstream.store(
        bus.subjects.request("c", "default"),
        encode(Request(id="r1", prompt="hello")),
        message_id="c.r1",
    )
    (request,) = await dispatched(bus, within_s=3)
    assert request.estimate.source == "median"
