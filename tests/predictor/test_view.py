"""What a predictor sees: the ledger, what is on its way, what it was just asked about."""

import msgspec
import pytest

from pipeline.messages import (
    EngineLimits,
    LengthEstimate,
    Probe,
    RequestState,
    StateUpdate,
    StepSample,
    StepTime,
)
from predictor.step_time import StepLoad, step_ms
from predictor.view import (
    PROBED_EXPIRES_S,
    QUEUED_EXPIRES_S,
    STATE_STALE_S,
    InstanceView,
    NoStateError,
)

LIMITS = EngineLimits(
    rules="vllm",
    block_size=16,
    kv_blocks=100,
    max_num_seqs=8,
    max_num_batched_tokens=512,
    max_model_len=1024,
)
STEP = StepTime(base_ms=1, flat_ms=1, token_ms=0.1, prefill_ms=0, context_ms=0.001, sequence_ms=0)


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def view(clock: Clock) -> InstanceView:
    return InstanceView("a", clock)


def update(sequence: int = 1, boot: str = "b1", instance: str = "a", **more: object) -> bytes:
    requests = more.get("requests", [])
    finished = more.get("finished", [])
    return msgspec.msgpack.encode(
        StateUpdate(
            instance=instance,
            boot=boot,
            sequence=sequence,
            sent_at_ms=0,
            limits=LIMITS,
            step_time=more.get("step_time", STEP),  # type: ignore[arg-type]
            requests=requests,  # type: ignore[arg-type]  # the test's own keywords
            finished=finished,  # type: ignore[arg-type]
            steps=more.get("steps", []),  # type: ignore[arg-type]
        )
    )


def running(key: str) -> RequestState:
    return RequestState(key, "decoding", 10, 12, 3, 100, 5, 20, 60)


def queued(key: str) -> dict[str, str]:
    return {
        "Astrolabe-Request": key,
        "Astrolabe-Prompt-Tokens": "7",
        "Astrolabe-Max-Tokens": "0",
        "Astrolabe-Estimate": "5,20,60",
    }


def probe(key: str) -> Probe:
    estimate = LengthEstimate(p10=5, p50=20, p90=60, source="test")
    return Probe(key=key, prompt_tokens=7, estimate=estimate)


def keys(view: InstanceView) -> list[str]:
    return [state.key for state in view.view().requests]


def test_nothing_known_is_an_error_not_an_idle_instance(view: InstanceView) -> None:
    with pytest.raises(NoStateError, match="no state"):
        view.view()


def test_a_stale_state_is_an_error(view: InstanceView, clock: Clock) -> None:
    view.state(update())
    clock.now += STATE_STALE_S + 1
    with pytest.raises(NoStateError, match="old"):
        view.view()


def test_the_layers_stand_behind_each_other(view: InstanceView) -> None:
    view.state(update(requests=[running("c.1")]))
    view.queued(queued("c.2"))
    view.probed(probe("c.3"))
    assert keys(view) == ["c.1", "c.2", "c.3"]


def test_the_ledger_takes_over_what_was_on_its_way(view: InstanceView) -> None:
    view.state(update(1))
    view.queued(queued("c.1"))
    view.state(update(2, requests=[running("c.1")]))
    assert keys(view) == ["c.1"]
    view.state(update(3))
    assert keys(view) == []


def test_a_request_that_ended_between_two_updates_is_gone(view: InstanceView) -> None:
    view.state(update(1))
    view.queued(queued("c.1"))
    view.state(update(2, finished=["c.1"]))
    assert keys(view) == []


def test_queued_entries_expire(view: InstanceView, clock: Clock) -> None:
    view.state(update(1))
    view.queued(queued("c.1"))
    clock.now += QUEUED_EXPIRES_S + 0.1
    view.state(update(2))
    assert keys(view) == []


def test_a_probe_counts_until_its_request_went_elsewhere(view: InstanceView, clock: Clock) -> None:
    view.state(update())
    view.probed(probe("c.1"))
    assert keys(view) == ["c.1"]
    clock.now += PROBED_EXPIRES_S + 0.001
    assert keys(view) == []


def test_a_probed_request_that_was_sent_here_stays(view: InstanceView, clock: Clock) -> None:
    view.state(update())
    view.probed(probe("c.1"))
    view.queued(queued("c.1"))
    clock.now += PROBED_EXPIRES_S + 0.001
    assert keys(view) == ["c.1"]


def test_a_new_boot_starts_empty(view: InstanceView) -> None:
    view.state(update(9, requests=[running("c.1")]))
    view.queued(queued("c.2"))
    assert view.state(update(1, boot="b2")) is None
    assert keys(view) == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"garbage", "undecodable"),
        (b"", "undecodable"),
        (update(5, instance="z"), "other_instance"),
        (update(1), "out_of_order"),
    ],
)
def test_wrong_state_is_dropped_with_a_reason(view: InstanceView, data: bytes, reason: str) -> None:
    view.state(update(1))
    assert view.state(data) == reason


def test_wrong_queued_headers_are_dropped_with_a_reason(view: InstanceView) -> None:
    assert view.queued({}) == "undecodable"
    assert view.queued({**queued("c.1"), "Astrolabe-Estimate": "1,2"}) == "undecodable"
    assert view.queued({**queued("c.1"), "Astrolabe-Prompt-Tokens": "many"}) == "undecodable"


def test_the_engines_speed_is_learnt_from_its_steps(view: InstanceView) -> None:
    # Every step takes 30 ms where the profile says about 2.1.
    for number in range(1, 60):
        steps = [StepSample(8, 0.0, 100 * n, 8, 30.0) for n in range(8)]
        assert view.state(update(number, steps=steps)) is None
    learnt = step_ms(view.view().step_time, StepLoad(8, 0.0, 400, 8))
    assert learnt == pytest.approx(30.0, rel=0.05)
    # It outlives a new boot of the same engine.
    view.state(update(1, boot="b2"))
    assert step_ms(view.view().step_time, StepLoad(8, 0.0, 400, 8)) == pytest.approx(learnt)


def test_impossible_steps_teach_nothing(view: InstanceView) -> None:
    view.state(update(1))
    before = view.view().step_time
    odd = [
        StepSample(8, 0.0, 10, 8, 0.0),
        StepSample(8, 0.0, 10, 8, -5.0),
        StepSample(8, 0.0, 10, 8, float("nan")),
        StepSample(8, 0.0, 10, 8, float("inf")),
        StepSample(0, 0.0, 10, 8, 5.0),
        StepSample(8, float("nan"), 10, 8, 5.0),
        StepSample(8, 0.0, -10, 8, 5.0),
    ]
    assert view.state(update(2, steps=odd)) is None
    assert view.view().step_time == before


def test_a_profile_of_no_engine_is_dropped(view: InstanceView) -> None:
    broken = msgspec.structs.replace(STEP, base_ms=float("nan"))
    assert view.state(update(1, step_time=broken)) == "unphysical"
