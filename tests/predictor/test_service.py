"""The predictor as a service on a real bus: what it is told, what it answers, what it refuses."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from prometheus_client import REGISTRY

from pipeline.bus import Bus
from pipeline.codec import decode, encode
from pipeline.errors import ServiceFailed, ServiceRefused
from pipeline.messages import (
    Ended,
    LengthEstimate,
    Prediction,
    Probe,
    RequestState,
    StateUpdate,
    StepSample,
)
from pipeline.subjects import Header
from predictor.coming import PROBED_EXPIRES_S
from predictor.scores import SCORES
from predictor.service import INLINE_REQUESTS_MAX, Oracle, Predictor, PredictorSettings
from predictor.step_time import DEFAULT_PROFILE, LIMITS, PROFILES
from predictor.trust import JUDGED_MIN
from predictor.view import STATE_STALE_S, InstanceView
from tests.waiting import eventually

STEP = PROFILES[DEFAULT_PROFILE]
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


def counted(name: str, **labels: str) -> float:
    """A metric's value now: the registry is the process's own, so a test takes the difference."""
    return REGISTRY.get_sample_value(f"astrolabe_{name}", labels) or 0.0


@pytest.mark.usefixtures("predictor")
async def test_before_any_state_it_says_so(bus: Bus) -> None:
    before = counted("predictions_total", outcome="no_state")
    with pytest.raises(ServiceFailed, match="no state of instance a yet") as told:
        await ask(bus)
    assert not isinstance(told.value, ServiceRefused), "it may know more in a moment"
    assert counted("predictions_total", outcome="no_state") == before + 1


async def test_a_state_that_is_too_old_is_none(bus: Bus, predictor: Predictor) -> None:
    now_s = 100.0
    predictor._view.clock = lambda: now_s
    await tell(bus, update(1, requests=[running("c.1")]))
    await ask(bus)
    now_s += STATE_STALE_S - 0.5
    assert (await ask(bus)).state_age_ms == pytest.approx(4_500)
    now_s += 1.0
    before = counted("predictions_total", outcome="no_state")
    with pytest.raises(ServiceFailed, match=r"the state of a is 5\.5 s old"):
        await ask(bus)
    assert counted("predictions_total", outcome="no_state") == before + 1
    await tell(bus, update(2))
    assert (await ask(bus)).state_age_ms == 0.0


@pytest.mark.usefixtures("predictor")
async def test_an_answer_is_counted(bus: Bus) -> None:
    await tell(bus, update(1))
    before = counted("predictions_total", outcome="answered")
    seconds = counted("prediction_seconds_count")
    assert (await ask(bus)).e2e_ms > 0
    assert counted("predictions_total", outcome="answered") == before + 1
    assert counted("prediction_seconds_count") == seconds + 1


VALID_PROBE = encode(Probe(key="c.1", prompt_tokens=5, estimate=ESTIMATE))


def probe_with(**changed: object) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(VALID_PROBE), **changed})


def estimate_with(literal: str) -> bytes:
    """The median as a literal, also one that JSON does not have."""
    assert b"100.0" in VALID_PROBE
    return VALID_PROBE.replace(b"100.0", literal.encode())


WRONG_PROBES = {
    "empty": b"",
    "garbage": b"garbage",
    "no field": b"{}",
    "cut short": VALID_PROBE[:-9],
    "msgpack": msgspec.msgpack.encode({"key": "c.1"}),
    "not utf-8": VALID_PROBE.replace(b"c.1", b"c.\xff"),
    "nested too deeply": b"[" * 50_000,
    "nested too deeply in a field": b'{"x":' + b"[" * 50_000,
    "negative tokens": probe_with(prompt_tokens=-1),
    "half a token": probe_with(prompt_tokens=1.5),
    "text for a number": probe_with(prompt_tokens="5"),
    "a negative limit": probe_with(max_tokens=-5),
    "no estimate": probe_with(estimate=None),
    "a list for an estimate": probe_with(estimate=[1, 2, 3]),
    "a huge list": probe_with(key=["c"] * 100_000),
    "a huge key": probe_with(key="c" * 100_000),
    "an empty key": probe_with(key=""),
    "an unknown kind": probe_with(kind="guess"),
    "no number": estimate_with("NaN"),
    "infinite": estimate_with("Infinity"),
    "beyond a float": estimate_with("1e999"),
    "never fits": probe_with(prompt_tokens=1_000_000),
    "beyond 64 bits": VALID_PROBE.replace(b'"prompt_tokens":5', b'"prompt_tokens":' + b"9" * 40),
}


@pytest.mark.usefixtures("predictor")
@pytest.mark.parametrize("body", WRONG_PROBES.values(), ids=WRONG_PROBES)
async def test_a_wrong_probe_is_answered_with_a_reason_and_counted(bus: Bus, body: bytes) -> None:
    await tell(bus, update(1))
    before = counted("predictions_total", outcome="refused")
    with pytest.raises(ServiceRefused, match=r"\w+"):
        await ask(bus, body=body)
    assert counted("predictions_total", outcome="refused") == before + 1
    assert (await ask(bus)).e2e_ms > 0


@pytest.mark.usefixtures("predictor")
@pytest.mark.parametrize("literal", ["-1e308", "-5", "0", "1e308", "1e-308"])
async def test_an_estimate_that_cannot_be_is_lived_with(bus: Bus, literal: str) -> None:
    await tell(bus, update(1))
    answer = await ask(bus, body=estimate_with(literal))
    assert 0 < answer.ttft_ms <= answer.e2e_ms < 1e9


VALID_STATE = msgspec.msgpack.encode(update(5, requests=[running("c.1"), running("c.2")]))
WRONG_STATES = {
    "empty": (b"", "undecodable"),
    "garbage": (b"garbage", "undecodable"),
    "cut short": (VALID_STATE[:-9], "undecodable"),
    "another instance": (
        VALID_STATE.replace(b"\xa8instance\xa1a", b"\xa8instance\xa1z"),
        "other_instance",
    ),
    "an earlier one": (msgspec.msgpack.encode(update(1)), "out_of_order"),
    "no engine's": (
        msgspec.msgpack.encode(
            msgspec.structs.replace(
                update(5), step_time=msgspec.structs.replace(STEP, base_ms=float("nan"))
            )
        ),
        "unphysical",
    ),
}


@pytest.mark.usefixtures("predictor")
@pytest.mark.parametrize(("body", "reason"), WRONG_STATES.values(), ids=WRONG_STATES)
async def test_wrong_state_changes_nothing_and_is_counted(
    bus: Bus, body: bytes, reason: str
) -> None:
    """All that is wrong with a state: tests/predictor/test_view.py."""
    await tell(bus, update(1, requests=[running("c.1")]))
    before = counted("state_dropped_total", reason=reason)
    await tell(bus, body)
    assert (await ask(bus)).requests == 1
    assert counted("state_dropped_total", reason=reason) == before + 1


@pytest.mark.usefixtures("predictor")
async def test_wrong_headers_of_the_inbox_are_counted(bus: Bus) -> None:
    await tell(bus, update(1))
    before = counted("state_dropped_total", reason="undecodable")
    await bus.publish(bus.subjects.queued("a"), b"", headers={"Astrolabe-Request": "c.1"})
    await bus.flush()
    assert (await ask(bus)).requests == 0
    assert counted("state_dropped_total", reason="undecodable") == before + 1


async def test_what_breaks_the_predictor_itself_is_counted_too(
    bus: Bus, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Prediction:
        raise ZeroDivisionError

    await tell(bus, update(1))
    before = counted("predictions_total", outcome="failed")
    with monkeypatch.context() as patched:
        patched.setattr(predictor._oracle, "predict", broken)
        with pytest.raises(ServiceFailed, match="ZeroDivisionError"):
            await ask(bus)
    assert counted("predictions_total", outcome="failed") == before + 1
    assert (await ask(bus)).e2e_ms > 0


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
    new, other = (Ended(f"c.{name}", "stop", 0.0, 1.0, 2.0) for name in ("new", "other"))
    await tell(bus, update(2, ended=[new]))
    await ask(bus, "c.other", kind="load")
    await tell(bus, update(3, ended=[new, other]))
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


async def test_an_older_state_has_moved_on_and_says_its_age(bus: Bus, predictor: Predictor) -> None:
    now_s = 100.0
    predictor._view.clock = lambda: now_s
    await tell(bus, update(1, requests=[running(f"c.{n}") for n in range(20)]))
    fresh = await ask(bus)
    now_s += 0.31
    later = await ask(bus)
    assert fresh.state_age_ms == 0.0
    assert later.state_age_ms == pytest.approx(310)
    assert later.requests == fresh.requests == 20
    assert predictor._view.view().requests[0].generated_tokens > 5


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
    seen = Ended("c.seen", "stop", waited_ms=0.0, ttft_ms=1.0, e2e_ms=2.0)
    await tell(bus, update(2, ended=[seen]))
    await eventually(lambda: bool(predictor._trust.quality().count), what="one result noted")
    predictor._trust.trusted = False
    before = counted("predictions_total", outcome="from_queue")
    assert (await ask(bus, "c.2")).from_queue
    assert counted("predictions_total", outcome="from_queue") == before + 1


async def test_an_end_counts_once_and_only_if_it_ran_to_its_end(
    bus: Bus, predictor: Predictor
) -> None:
    await tell(bus, update(1))
    outcomes = ("stop", "length", "cancelled", "failed", "handed_back")
    for outcome in outcomes:
        await ask(bus, f"c.{outcome}")
    ended = [Ended(f"c.{outcome}", outcome, 0.0, 1.0, 2.0) for outcome in outcomes]
    await tell(bus, update(2, ended=ended))
    await tell(bus, update(3, ended=ended))
    await ask(bus)  # both states are in
    assert predictor._trust.quality().count == 2


async def test_its_record_is_shown(bus: Bus, predictor: Predictor) -> None:
    await tell(bus, update(1))
    for number in range(JUDGED_MIN + 2):
        await ask(bus, f"c.{number}")
    assert counted("predictor_trusted") == 1
    # All took a hundredth of what was predicted; the plain estimate knows that from the first on.
    ends = [Ended(f"c.{number}", "stop", 0.0, 10.0, 20.0) for number in range(JUDGED_MIN + 2)]
    await tell(bus, update(2, ended=ends[:1]))
    await ask(bus, "c.last")
    for number in range(1, JUDGED_MIN + 2):
        # One at a time, however fast the machine is: none is ahead of the next.
        await asyncio.sleep(2 * PROBED_EXPIRES_S)
        await ask(bus, f"c.{number}")
    await tell(bus, update(3, ended=ends))
    await ask(bus, "c.last")
    await predictor._show()
    assert counted("prediction_error", figure="e2e", quantile="0.5") > 1
    assert counted("prediction_error", figure="e2e", quantile="0.99") > 1
    assert counted("prediction_error", figure="ttft", quantile="0.5") > 0
    assert counted("prediction_bias", figure="e2e") < -1
    assert counted("prediction_error_latest", estimate="simulation") > 1
    assert counted("prediction_error_latest", estimate="queue_length") < 1
    assert counted("predictor_trusted") == 0
    assert counted("step_time_error") == 0
