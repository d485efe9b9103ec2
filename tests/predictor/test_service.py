"""The predictor as a service on a real bus: what it is told, what it answers, what it refuses."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from pipeline.bus import Bus
from pipeline.codec import decode, encode
from pipeline.errors import ServiceFailed, ServiceRefused
from pipeline.messages import (
    LengthEstimate,
    Prediction,
    Probe,
    RequestState,
    StateUpdate,
    StepSample,
)
from pipeline.subjects import Header
from predictor.scores import SCORES
from predictor.service import INLINE_REQUESTS_MAX, Oracle, Predictor, PredictorSettings
from predictor.step_time import DEFAULT_PROFILE, LIMITS, PROFILES
from predictor.view import InstanceView
from tests.waiting import eventually

ESTIMATE = LengthEstimate(p10=40.0, p50=100.0, p90=300.0, source="test")


def running(key: str, prompt: int = 200) -> RequestState:
    return RequestState(key, "decoding", prompt, prompt + 4, 5, 2000, 40.0, 150.0, 400.0)


def update(sequence: int, **more: object) -> StateUpdate:
    fields: dict[str, object] = {"requests": [], "finished": [], "steps": [], **more}
    return StateUpdate(
        instance="a",
        boot="b",
        model="llama",
        engine="simulated",
        sequence=sequence,
        sent_at_ms=0.0,
        limits=LIMITS[DEFAULT_PROFILE],
        step_time=PROFILES[DEFAULT_PROFILE],
        **fields,  # type: ignore[arg-type]  # the test's own keywords
    )


async def tell(bus: Bus, state: StateUpdate | bytes) -> None:
    body = state if isinstance(state, bytes) else msgspec.msgpack.encode(state)
    await bus.publish(bus.subjects.state("a"), body)
    await bus.flush()


async def ask(
    bus: Bus,
    key: str = "c.new",
    prompt: int = 50,
    body: bytes | None = None,
    kind: Literal["simulate", "load"] = "simulate",
) -> Prediction:
    asked = Probe(key=key, prompt_tokens=prompt, estimate=ESTIMATE, kind=kind)
    probe = encode(asked) if body is None else body
    reply = await bus.request(bus.subjects.predict("a"), probe, timeout_s=2)
    return decode(reply.data, Prediction)


@pytest.fixture
async def predictor(bus: Bus, tmp_path: Path) -> AsyncIterator[Predictor]:
    stop = asyncio.Event()
    made = Predictor(bus, PredictorSettings(instance="a", fit_folder=tmp_path / "fits"))
    serving = asyncio.create_task(made.serve(stop))
    await asyncio.sleep(0.05)
    yield made
    stop.set()
    await serving


@pytest.mark.usefixtures("predictor")
async def test_a_busier_instance_predicts_more(bus: Bus) -> None:
    await tell(bus, update(1))
    idle = await ask(bus, "c.1")
    await tell(bus, update(2, requests=[running(f"c.r{n}") for n in range(40)]))
    busy = await ask(bus, "c.2")
    assert (idle.instance, idle.boot, idle.requests) == ("a", "b", 0)
    assert busy.requests >= 40
    assert busy.e2e_ms > idle.e2e_ms
    assert busy.cost == busy.e2e_ms


@pytest.mark.usefixtures("predictor")
async def test_before_any_state_it_says_so(bus: Bus) -> None:
    with pytest.raises(ServiceFailed, match="no state") as told:
        await ask(bus)
    assert not isinstance(told.value, ServiceRefused), "it may know more in a moment"


@pytest.mark.usefixtures("predictor")
@pytest.mark.parametrize(
    "body", [b"", b"garbage", b"{}", b'{"key":"c.1","prompt_tokens":-1}', b"[" * 50_000]
)
async def test_a_garbage_probe_is_answered_with_a_reason(bus: Bus, body: bytes) -> None:
    await tell(bus, update(1))
    with pytest.raises(ServiceFailed):
        await ask(bus, body=body)
    assert (await ask(bus)).e2e_ms > 0


@pytest.mark.usefixtures("predictor")
async def test_garbage_state_changes_nothing(bus: Bus) -> None:
    await tell(bus, update(1, requests=[running("c.1")]))
    for body in (b"", b"garbage", b"\x81\xa8instance\xa1b"):
        await tell(bus, body)
    assert (await ask(bus)).requests == 1


@pytest.mark.usefixtures("predictor")
async def test_a_prompt_that_can_never_fit_is_refused(bus: Bus) -> None:
    await tell(bus, update(1))
    with pytest.raises(ServiceRefused, match="no room"):
        await ask(bus, prompt=1_000_000)


async def test_asked_for_its_load_it_simulates_nothing(bus: Bus, predictor: Predictor) -> None:
    await tell(bus, update(1, requests=[running("c.1"), running("c.2")]))
    answer = await ask(bus, kind="load")
    assert answer.load is not None
    assert (answer.load.running, answer.load.waiting) == (2, 0)
    assert answer.load.kv_blocks_free == LIMITS[DEFAULT_PROFILE].kv_blocks - 2 * 13
    assert (answer.ttft_ms, answer.e2e_ms, answer.cost, answer.steps) == (0, 0, 0, 0)
    assert (answer.instance, answer.boot, answer.requests) == ("a", "b", 2)
    assert (await ask(bus)).load is None
    # Nor does it keep a record of a prediction that nobody made.
    await tell(bus, update(2, finished=["c.new"]))
    await ask(bus, "c.other", kind="load")
    await tell(bus, update(3, finished=["c.new", "c.other"]))
    await eventually(lambda: bool(predictor._trust.quality().count), what="one result noted")
    assert predictor._trust.quality().count == 1


@pytest.mark.usefixtures("predictor")
async def test_a_load_counts_what_inbox_stored_and_not_what_was_only_asked(bus: Bus) -> None:
    await tell(bus, update(1))
    for number in range(5):
        answer = await ask(bus, f"c.{number}", kind="load")
        assert answer.load is not None
        assert answer.load.waiting == 0
    headers = {
        Header.REQUEST: "c.coming",
        Header.PROMPT_TOKENS: "33",
        Header.MAX_TOKENS: "100",
        Header.ESTIMATE: "40,100,300",
    }
    await bus.publish(bus.subjects.queued("a"), b"", headers=headers)
    answer = await ask(bus, kind="load")
    assert answer.load is not None
    assert (answer.load.waiting, answer.load.waiting_prompt_blocks) == (1, 3)
    assert answer.load.prefill_tokens_waiting == 33


@pytest.mark.usefixtures("predictor")
@pytest.mark.parametrize("requests", [10, INLINE_REQUESTS_MAX + 1])
async def test_the_load_of_a_large_state_is_counted_too(bus: Bus, requests: int) -> None:
    await tell(bus, update(1, requests=[running(f"c.{n}") for n in range(requests)]))
    answer = await ask(bus, kind="load")
    assert answer.load is not None
    assert answer.load.running == requests


@pytest.mark.usefixtures("predictor")
async def test_a_load_is_refused_where_a_prediction_would_be(bus: Bus) -> None:
    with pytest.raises(ServiceFailed, match="no state"):
        await ask(bus, kind="load")
    await tell(bus, update(1))
    with pytest.raises(ServiceRefused, match="no room"):
        await ask(bus, prompt=1_000_000, kind="load")


async def test_what_was_learnt_outlives_the_process(
    bus: Bus, predictor: Predictor, tmp_path: Path
) -> None:
    steps = [StepSample(8, 0.0, 100 * n, 8, 60.0) for n in range(200)]
    await tell(bus, update(1, steps=steps))
    await eventually(lambda: predictor._view.fit is not None, what="learning begun")
    await predictor._save()
    learnt = predictor._view.step_time
    again = Predictor(bus, PredictorSettings(instance="a", fit_folder=tmp_path / "fits"))
    again._view.apply(update(1))
    kept = again._view.step_time
    assert kept is not None
    assert learnt is not None
    assert msgspec.structs.astuple(kept) == pytest.approx(msgspec.structs.astuple(learnt))


def test_the_cost_is_what_the_score_says() -> None:
    probe = Probe(key="c.new", prompt_tokens=50, estimate=ESTIMATE, deadline_ms=3000.0)
    costs = {}
    for name in SCORES:
        view = InstanceView("a")
        view.apply(update(1, requests=[running(f"c.{n}") for n in range(30)]))
        prediction = Oracle(name).predict(view.view(), probe)
        costs[name] = prediction.cost
        if name == "e2e":
            assert prediction.cost == prediction.e2e_ms
        if name == "ttft":
            assert prediction.cost == prediction.ttft_ms
    assert costs["marginal"] > costs["e2e"], "others are delayed"
    assert 0 <= costs["slo"] <= 1.001


async def test_a_bad_record_is_answered_from_the_queue(bus: Bus, predictor: Predictor) -> None:
    await tell(bus, update(1))
    await ask(bus, "c.seen")
    await tell(bus, update(2, finished=["c.seen"]))
    await eventually(lambda: bool(predictor._trust.quality().count), what="one result noted")
    predictor._trust.trusted = False
    assert (await ask(bus, "c.2")).from_queue
