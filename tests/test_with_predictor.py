"""`astrolabe worker --with-predictor`: one process an instance, as a person starts it by hand."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pipeline.bus import Bus, BusSettings
from pipeline.child import Child
from pipeline.client import Client
from pipeline.codec import decode, encode
from pipeline.errors import BusError
from pipeline.messages import LengthEstimate, Prediction, Probe, Request
from pipeline.nats_server import NatsServer
from pipeline.stack_settings import StackSettings
from pipeline.status import ping_services
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(120)

NAMES = ("a", "b")
COMPONENTS = {
    "a": ("worker", "--instance", "a", "--with-predictor", "--engine-arg", "time_scale=0.1"),
    "b": ("worker", "--instance", "b", "--with-predictor", "--engine-arg", "time_scale=0.1"),
    "tagger": ("tagger",),
    # A slow machine's probe is late, and that is another test's matter.
    "dispatcher": ("dispatcher", "--probe-timeout-ms", "5000", "--seed", "1"),
}


@pytest.fixture
async def processes(
    bus: Bus, nats_server: NatsServer, tmp_path: Path
) -> AsyncIterator[dict[str, Child]]:
    """Two instances of one process each, a tagger, a dispatcher; all of them answer."""
    command = StackSettings().command
    started = {
        name: Child([*command, *arguments, "--url", nats_server.url], tmp_path / f"{name}.log")
        for name, arguments in COMPONENTS.items()
    }

    async def all_answer() -> bool:
        ended = {name: child.log_tail() for name, child in started.items() if not child.running}
        assert not ended
        roles = [service.role for service in await ping_services(bus, 0.1)]
        return roles == [*("dispatcher", "predictor", "predictor", "tagger", "worker", "worker")]

    try:
        await eventually(all_answer, within_s=30, what="every service")
        yield started
    finally:
        for child in started.values():
            child.kill()


async def prediction_of(bus: Bus, instance: str) -> Prediction | None:
    estimate = LengthEstimate(p10=20.0, p50=50.0, p90=100.0, source="test")
    probe = encode(Probe(key="c.asked", prompt_tokens=20, estimate=estimate))
    try:
        reply = await bus.request(bus.subjects.predict(instance), probe, timeout_s=5)
    except BusError:  # it has heard of no state yet
        return None
    return decode(reply.data, Prediction)


async def test_its_predictor_answers_and_requests_are_placed_by_prediction(
    bus: Bus, nats_server: NatsServer, processes: dict[str, Child]
) -> None:
    for name in NAMES:
        answers: list[Prediction] = []

        async def answered(name: str = name, answers: list[Prediction] = answers) -> bool:
            prediction = await prediction_of(bus, name)
            answers += [] if prediction is None else [prediction]
            return bool(answers)

        await eventually(answered, what=f"a prediction of {name}")
        assert (answers[0].instance, answers[0].requests) == (name, 0)
        assert answers[0].boot
        assert 0 < answers[0].ttft_ms < answers[0].e2e_ms
        assert not answers[0].from_queue

    async with await Client.connect(BusSettings(url=nats_server.url)) as client:
        for number in range(6):
            request = Request(id=f"r{number}", prompt="hello", max_tokens=8, ignore_eos=True)
            assert (await client.complete(request)).text
            result = await client.result(request.id)
            assert result is not None
            decision = result.decision
            assert decision is not None
            assert (decision.fallback, decision.reason) == (False, "lowest predicted cost")
            costs = {c.instance: c.prediction.cost for c in decision.candidates if c.prediction}
            assert set(costs) == set(NAMES)
            assert result.instance is not None
            assert costs[result.instance] == min(costs.values())

    for name in NAMES:
        processes[name].send(signal.SIGTERM)
    for name in NAMES:
        assert await processes[name].wait(15)
        assert processes[name].status == 0, processes[name].log_tail()
