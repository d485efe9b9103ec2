"""The work queue: a bounded number in hand, each message settled, and nothing lost whatever
happens to handlers, consumer or server."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from pipeline.bus import Bus, Delivery, WorkQueue, work
from pipeline.bus.topology import ConsumerSpec, ensure_topology
from pipeline.bus.work import Handler
from pipeline.errors import BusUnavailable
from pipeline.messages import wall_ms
from pipeline.nats_server import NatsServer
from tests.conftest import Connect
from tests.waiting import eventually

SUBJECT = "astrolabe.request.alice.default"
STREAM = "ASTROLABE_REQUESTS"
SPEC = ConsumerSpec(STREAM, "worker", "astrolabe.request.*.*", ack_wait_s=1.0)


@asynccontextmanager
async def draining(
    bus: Bus, handle: Handler, *, in_hand_max: int = 4, spec: ConsumerSpec = SPEC
) -> AsyncIterator[WorkQueue]:
    queue = WorkQueue(bus, spec, handle, in_hand_max=in_hand_max)
    running = asyncio.create_task(queue.run())
    try:
        yield queue
    finally:
        await queue.stop(0.0)
        await running


async def put(bus: Bus, *bodies: bytes) -> None:
    for body in bodies:
        await bus.jetstream.store(SUBJECT, body, message_id=body.decode())


async def left(bus: Bus) -> int:
    return int((await bus.jetstream.stream_info(STREAM))["state"]["messages"])


def empty(bus: Bus) -> Callable[[], Awaitable[bool]]:
    async def is_empty() -> bool:
        return await left(bus) == 0

    return is_empty


class Recorder:
    """A handler that notes what came and then acknowledges it, after a while if so told."""

    def __init__(self, take_s: float = 0.0) -> None:
        self.take_s = take_s
        self.came: Counter[bytes] = Counter()
        self.deliveries: list[Delivery] = []
        self.now = 0
        self.most = 0

    async def __call__(self, delivery: Delivery) -> None:
        self.came[delivery.data] += 1
        self.deliveries.append(delivery)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self.take_s)
        finally:
            self.now -= 1
        await delivery.ack()


async def test_never_more_in_hand_than_allowed(bus: Bus) -> None:
    recorder = Recorder(take_s=0.01)
    bodies = [b"%d" % number for number in range(60)]
    await put(bus, *bodies)
    async with draining(bus, recorder) as queue:
        while sum(recorder.came.values()) < len(bodies):
            assert queue.in_hand <= 4  # the server's own count lags: it notes acks on the side
            await asyncio.sleep(0)
        await eventually(empty(bus))
    assert recorder.most == 4
    assert recorder.came == Counter(bodies)


async def test_what_is_not_wanted_yet_stays_in_the_stream(bus: Bus) -> None:
    """A second worker can take what the first has no room for."""
    slow, quick = Recorder(take_s=30), Recorder()
    await put(bus, *(b"%d" % number for number in range(10)))
    async with draining(bus, slow, in_hand_max=2) as first:
        await eventually(lambda: first.in_hand == 2)
        async with draining(bus, quick):
            await eventually(lambda: sum(quick.came.values()) == 8)


async def test_tells_what_the_server_knows_of_a_message(bus: Bus) -> None:
    recorder = Recorder()
    stored = await bus.jetstream.store(SUBJECT, b"1", message_id="1", headers={"A": "b"})
    async with draining(bus, recorder):
        await eventually(empty(bus))
    (delivery,) = recorder.deliveries
    assert delivery.subject == SUBJECT
    assert delivery.sequence == stored.sequence
    assert delivery.deliveries == 1
    assert delivery.pending == 0
    assert delivery.headers["A"] == "b"
    assert delivery.stored_at_ms == pytest.approx(wall_ms(), abs=20_000)


@pytest.mark.parametrize(
    "error", [ValueError("bad"), BusUnavailable("down"), asyncio.CancelledError()]
)
async def test_a_handler_that_fails_gets_the_message_again(bus: Bus, error: BaseException) -> None:
    recorder = Recorder()

    async def explode_once(delivery: Delivery) -> None:
        if delivery.deliveries == 1 and delivery.data == b"bad":
            raise error
        await recorder(delivery)

    await put(bus, b"bad", b"good")
    async with draining(bus, explode_once):
        await eventually(lambda: recorder.came[b"good"] == 1, within_s=0.9)
        await eventually(empty(bus))
    assert recorder.came == Counter([b"good", b"bad"])
    assert recorder.deliveries[-1].deliveries == 2


async def test_a_handler_that_forgets_gets_the_message_again(bus: Bus) -> None:
    async def forget_once(delivery: Delivery) -> None:
        if delivery.deliveries > 1:
            await delivery.ack()

    await put(bus, b"1")
    async with draining(bus, forget_once):
        await eventually(empty(bus))


async def test_failure_1_what_takes_longer_than_ack_wait_is_delivered_once(bus: Bus) -> None:
    recorder = Recorder(take_s=2.5)
    await put(bus, b"long")
    async with draining(bus, recorder), draining(bus, recorder):
        await eventually(empty(bus))
    assert recorder.came == Counter([b"long"])


async def test_without_its_keeper_it_comes_again(bus: Bus, connect: Connect) -> None:
    """The keep-alives are what holds a message: when their process dies, ack_wait runs."""
    held, recorder = Recorder(take_s=60), Recorder()
    await put(bus, b"1")
    doomed = await connect("doomed")
    async with draining(doomed, held) as queue:
        await eventually(lambda: queue.in_hand == 1)
        await doomed.client.close()  # no drain, no hand-back: as if killed
        async with draining(bus, recorder):
            await eventually(empty(bus))
    assert recorder.deliveries[0].deliveries == 2


async def test_refused_for_now_and_for_ever(bus: Bus) -> None:
    came: list[tuple[bytes, int, float]] = []
    loop = asyncio.get_running_loop()

    async def refuse(delivery: Delivery) -> None:
        came.append((delivery.data, delivery.deliveries, loop.time()))
        if delivery.data == b"never":
            await delivery.term()
        elif delivery.deliveries == 1:
            await delivery.nak(0.5)
        else:
            await delivery.ack()

    await put(bus, b"never", b"later")
    async with draining(bus, refuse):
        await eventually(empty(bus))
    assert [c[:2] for c in came] == [(b"never", 1), (b"later", 1), (b"later", 2)]
    assert came[2][2] - came[1][2] >= 0.45


async def test_settles_once(bus: Bus) -> None:
    async def twice(delivery: Delivery) -> None:
        await delivery.ack()
        await delivery.nak()
        await delivery.keep()

    await put(bus, b"1")
    async with draining(bus, twice):
        await eventually(empty(bus))
        await asyncio.sleep(0.1)


async def test_a_header_called_status_does_not_hide_a_message(bus: Bus) -> None:
    recorder = Recorder()
    for status in ("100", "404", "409", "503"):
        await bus.jetstream.store(
            SUBJECT, status.encode(), message_id=status, headers={"Status": status}
        )
    async with draining(bus, recorder):
        await eventually(empty(bus))
    assert recorder.came == Counter([b"100", b"404", b"409", b"503"])


async def test_failure_4_pulling_goes_on_after_the_servers_death(
    nats_server: NatsServer, bus: Bus
) -> None:
    recorder = Recorder()
    async with draining(bus, recorder):
        await put(bus, b"before")
        await eventually(empty(bus))
        nats_server.kill()
        await asyncio.sleep(0.5)
        await nats_server.restart()
        await put(bus, b"after")
        await eventually(empty(bus))
    assert recorder.came[b"after"] == 1


async def test_a_long_run_over_the_servers_death_ends(nats_server: NatsServer, bus: Bus) -> None:
    """The server may forget that it was delivered, or when, and deliver it again: handlers know
    what they hold. It is never lost, and both deliveries can be settled."""
    recorder = Recorder(take_s=2.0)
    async with draining(bus, recorder) as queue:
        await put(bus, b"long")
        await eventually(lambda: recorder.now == 1)
        nats_server.kill()
        await nats_server.restart()
        await eventually(empty(bus))
        await eventually(lambda: queue.in_hand == 0)
    assert recorder.came[b"long"] in (1, 2)


async def test_failure_11_a_consumer_that_is_gone_is_made_again(bus: Bus) -> None:
    recorder = Recorder()
    async with draining(bus, recorder):
        await put(bus, b"before")
        await eventually(empty(bus))
        await bus.jetstream.delete_consumer(STREAM, SPEC.name)
        await put(bus, b"after")
        await eventually(empty(bus))


async def test_waits_for_a_stream_that_is_not_there_yet(connect: Connect) -> None:
    bus = await connect()
    recorder = Recorder()
    async with draining(bus, recorder):
        await asyncio.sleep(0.5)
        await ensure_topology(bus)
        await put(bus, b"1")
        await eventually(empty(bus))


async def test_failure_5_a_server_that_hangs_but_stays_connected_is_noticed(
    nats_server: NatsServer, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that hangs keeps the connection; only the missing heartbeats tell."""
    monkeypatch.setattr(work, "PULL_HEARTBEAT_S", 0.3)
    monkeypatch.setattr(work, "SILENCE_MAX_S", 0.75)
    recorder = Recorder()
    async with draining(bus, recorder):
        await put(bus, b"before")
        await eventually(empty(bus))
        nats_server.pause()
        await asyncio.sleep(1.5)
        nats_server.resume()
        await put(bus, b"after")
        await eventually(empty(bus))


async def test_stop_hands_back_at_once(bus: Bus) -> None:
    slow, recorder = Recorder(take_s=30), Recorder()
    await put(bus, *(b"%d" % number for number in range(6)))
    async with draining(bus, slow) as queue:
        await eventually(lambda: queue.in_hand == 4)
        await queue.stop(0.1)
        assert queue.in_hand == 0
        async with draining(bus, recorder):
            await eventually(empty(bus), within_s=0.9)  # less than ack_wait
    assert sum(recorder.came.values()) == 6


async def test_stop_lets_handlers_finish(bus: Bus) -> None:
    recorder = Recorder(take_s=0.5)
    await put(bus, b"1", b"2")
    async with draining(bus, recorder) as queue:
        await eventually(lambda: queue.in_hand == 2)
        await queue.stop(10.0)
        assert recorder.now == 0
    await eventually(empty(bus))  # the server notes acknowledgements on the side
    assert recorder.came == Counter([b"1", b"2"])


async def test_hurry_cuts_the_grace_short(bus: Bus) -> None:
    slow, hurry = Recorder(take_s=30), asyncio.Event()
    await put(bus, b"1")
    async with draining(bus, slow) as queue:
        await eventually(lambda: queue.in_hand == 1)
        stopping = asyncio.create_task(queue.stop(20.0, hurry))
        await asyncio.sleep(0.1)
        assert not stopping.done()
        hurry.set()
        async with asyncio.timeout(2):
            await stopping
    assert await left(bus) == 1
