"""What a predictor sees: the ledger, what is on its way, what it was just asked about."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.messages import (
    ENDED_REPORTED_MAX,
    LEDGER_MAX,
    Ended,
    EngineLimits,
    LengthEstimate,
    Probe,
    RequestState,
    StateUpdate,
    StepSample,
    StepTime,
)
from predictor.coming import ON_THEIR_WAY_MAX, PROBED_EXPIRES_S, QUEUED_EXPIRES_S
from predictor.service import Oracle
from predictor.step_time import StepLoad, step_ms
from predictor.view import (
    ADVANCE_EVERY_S,
    ADVANCE_MAX,
    ENDED_UNTAKEN_MAX,
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
STEP_DICT = msgspec.structs.asdict(STEP)
NAN, INF = float("nan"), float("inf")


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
    return msgspec.msgpack.encode(
        StateUpdate(
            instance=instance,
            boot=boot,
            sequence=sequence,
            sent_at_ms=0,
            limits=LIMITS,
            step_time=more.get("step_time", STEP),  # type: ignore[arg-type]
            requests=requests,  # type: ignore[arg-type]  # the test's own keywords
            ended=more.get("ended", []),  # type: ignore[arg-type]
            finished=more.get("finished", []),  # type: ignore[arg-type]
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
    view.state(update(2, ended=[Ended("c.1", "cancelled")]))
    assert keys(view) == []


def test_a_worker_that_tells_keys_alone_is_understood(view: InstanceView) -> None:
    view.state(update(1))
    view.queued(queued("c.1"))
    view.state(update(2, finished=["c.1"]))
    assert keys(view) == []
    assert view.take_ended() == []


def test_a_request_that_ended_is_not_expected_any_more_if_it_was_just_asked_about(
    view: InstanceView,
) -> None:
    view.state(update(1))
    view.probed(probe("c.1"))
    view.state(update(2, ended=[Ended("c.1", "failed")]))
    assert keys(view) == []


def test_each_end_is_told_once_however_often_it_comes(view: InstanceView) -> None:
    first, second = Ended("c.1", "stop", 0, 1, 2), Ended("c.2", "stop", 0, 1, 2)
    view.state(update(1, ended=[first]))
    assert view.take_ended() == [first]
    view.state(update(2, ended=[first, second]))
    view.state(update(3, ended=[first, second]))
    assert view.take_ended() == [second]
    assert view.take_ended() == []
    # The same request may run here again, and end again.
    again = Ended("c.1", "stop", 0, 5, 6)
    view.state(update(4, ended=[first, second, again]))
    assert view.take_ended() == [again]


def test_an_end_that_is_told_again_does_not_undo_a_second_run(view: InstanceView) -> None:
    gone = Ended("c.1", "handed_back")
    view.state(update(1, ended=[gone]))
    view.queued(queued("c.1"))
    view.state(update(2, ended=[gone]))
    assert keys(view) == ["c.1"]


def test_ends_that_nobody_takes_are_bounded(view: InstanceView) -> None:
    for number in range(40):
        ended = [Ended(f"c.{number}.{n}", "stop") for n in range(ENDED_REPORTED_MAX)]
        assert view.state(update(number + 1, ended=ended)) is None
    assert len(view.take_ended()) == ENDED_UNTAKEN_MAX


@given(lost=st.sets(st.integers(1, 11)), order=st.permutations(range(1, 13)))
def test_lost_and_late_updates_heal_with_the_next(lost: set[int], order: list[int]) -> None:
    """Of twelve requests number n is on its way first, named by update n, and ended by n + 2."""
    view = InstanceView("a", Clock())
    told: list[str] = []
    view.state(update(0))
    for number in range(1, 13):
        view.queued(queued(f"c.{number}"))
    for sequence in [n for n in order if n not in lost]:
        ended = [Ended(f"c.{n}", "stop") for n in range(1, sequence - 1)]
        view.state(update(sequence, requests=[running(f"c.{sequence}")], ended=ended))
        told += [e.key for e in view.take_ended()]
    last = max(n for n in order if n not in lost)
    assert last == 12
    # Number 11 was named by one update at most, and has not ended.
    assert set(keys(view)) <= {"c.12", "c.11"}
    assert keys(view)[0] == "c.12"
    assert sorted(told) == sorted(f"c.{n}" for n in range(1, 11))


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
    # What the boot before still says comes too late, whatever its number.
    assert view.state(update(10, requests=[running("c.1")])) == "old_boot"
    assert keys(view) == []
    assert view.state(update(2, boot="b2", requests=[running("c.3")])) is None
    assert keys(view) == ["c.3"]


VALID = update(5, requests=[running("c.1")], ended=[Ended("c.0", "stop")])


def with_fields(**changed: object) -> bytes:
    return msgspec.msgpack.encode({**msgspec.msgpack.decode(VALID), **changed})


ROW = ["c.1", "decoding", 10, 12, 3, 100, 5.0, 20.0, 60.0, 0]


def with_row(place: int, value: object) -> bytes:
    return with_fields(requests=[[*ROW[:place], value, *ROW[place + 1 :]]])


def with_limit(**changed: object) -> bytes:
    return with_fields(limits={**msgspec.structs.asdict(LIMITS), **changed})


WRONG_STATES = {
    "garbage": (b"garbage", "undecodable"),
    "empty": (b"", "undecodable"),
    "json": (b"{}", "undecodable"),
    "an array": (msgspec.msgpack.encode([1, 2]), "undecodable"),
    "more behind it": (VALID + b"x", "undecodable"),
    "nested too deeply": (b"\x81\xa1x" + b"\x91" * 100_000 + b"\xc0", "undecodable"),
    "not utf-8": (VALID.replace(b"c.1", b"c.\xff"), "undecodable"),
    "text for a number": (with_fields(sequence="5"), "undecodable"),
    "no requests": (with_fields(requests=None), "undecodable"),
    "negative tokens": (with_row(2, -1), "undecodable"),
    "negative progress": (with_row(4, -1), "undecodable"),
    "an unknown phase": (with_row(1, "dreaming"), "undecodable"),
    "a short row": (with_fields(requests=[ROW[:5]]), "undecodable"),
    "too many requests": (with_fields(requests=[ROW] * (LEDGER_MAX + 1)), "undecodable"),
    "too many ends": (with_fields(ended=[["c", "stop"]] * 300), "undecodable"),
    "too many steps": (with_fields(steps=[[1, 1.0, 1, 1, 1.0]] * 300), "undecodable"),
    "another instance": (update(5, instance="z"), "other_instance"),
    "an earlier one": (update(1), "out_of_order"),
    "the same again": (update(2), "out_of_order"),
    "no number": (with_fields(step_time={**STEP_DICT, "base_ms": NAN}), "unphysical"),
    "infinite": (with_fields(step_time={**STEP_DICT, "token_ms": INF}), "unphysical"),
    "below zero": (with_fields(step_time={**STEP_DICT, "context_ms": -1}), "unphysical"),
    "no block size": (with_limit(block_size=0), "unphysical"),
    "no blocks": (with_limit(kv_blocks=-4), "unphysical"),
    "no batch": (with_limit(max_num_seqs=0), "unphysical"),
    "no budget": (with_limit(max_num_batched_tokens=0), "unphysical"),
    "all kept free": (with_limit(watermark=1.0), "unphysical"),
    "no watermark": (with_limit(watermark=NAN), "unphysical"),
}


@pytest.mark.parametrize(("data", "reason"), WRONG_STATES.values(), ids=WRONG_STATES)
def test_wrong_state_is_dropped_with_a_reason(view: InstanceView, data: bytes, reason: str) -> None:
    view.state(update(2, requests=[running("c.kept")]))
    assert view.state(data) == reason
    assert keys(view) == ["c.kept"]
    assert view.state(VALID) is None


def test_every_truncation_is_undecodable(view: InstanceView) -> None:
    for end in range(len(VALID)):
        assert view.state(VALID[:end]) == "undecodable"
    assert view.state(VALID) is None


@given(at=st.integers(0, len(VALID) - 1), byte=st.integers(0, 255))
def test_a_byte_that_was_changed_breaks_nothing(at: int, byte: int) -> None:
    view = InstanceView("a", Clock())
    reason = view.state(VALID[:at] + bytes([byte]) + VALID[at + 1 :])
    assert reason in (None, "undecodable", "other_instance", "unphysical")
    if reason is None:
        Oracle().predict(view.view(), probe("c.new"))


@pytest.mark.parametrize("estimate", [NAN, INF, -INF, -5.0, 0.0, 1e308])
@pytest.mark.parametrize("place", [6, 7, 8])
def test_estimates_that_cannot_be_are_lived_with(
    view: InstanceView, place: int, estimate: float
) -> None:
    assert view.state(with_row(place, estimate)) is None
    prediction = Oracle().predict(view.view(), probe("c.new"))
    assert 0 < prediction.ttft_ms <= prediction.e2e_ms < INF


def test_unknown_fields_and_longer_rows_are_a_newer_writers(view: InstanceView) -> None:
    newer = with_fields(
        mood="good", requests=[[*ROW, "more"]], ended=[["c.0", "retired", 1, 2, 3, 4]]
    )
    assert view.state(newer) is None
    assert keys(view) == ["c.1"]
    assert [told.answered for told in view.take_ended()] == [False]
    assert view.state(with_fields(sequence=6, ended=[["c.9", "stop"]])) is None
    assert view.take_ended() == [Ended("c.9", "stop")]


def test_wrong_queued_headers_are_dropped_with_a_reason(view: InstanceView) -> None:
    assert view.queued({}) == "undecodable"
    for name, value in (
        ("Estimate", "1,2"),
        ("Estimate", "1,2,3,4"),
        ("Estimate", "nan,2,3"),
        ("Estimate", "1,inf,3"),
        ("Estimate", "1,2,-3"),
        ("Prompt-Tokens", "many"),
        ("Prompt-Tokens", "-1"),
        ("Prompt-Tokens", "9" * 30),
        ("Max-Tokens", "-1"),
        ("Max-Tokens", "1.5"),
    ):
        assert view.queued({**queued("c.1"), f"Astrolabe-{name}": value}) == "undecodable"
    view.state(update(1))
    assert keys(view) == []


def test_what_is_on_its_way_is_bounded(view: InstanceView, clock: Clock) -> None:
    view.state(update(1))
    for number in range(ON_THEIR_WAY_MAX):
        assert view.queued(queued(f"c.{number}")) is None
    assert view.queued(queued("c.more")) == "too_many"
    clock.now += QUEUED_EXPIRES_S + 1
    assert view.queued(queued("c.more")) is None
    for number in range(ON_THEIR_WAY_MAX + 5):
        view.probed(probe(f"p.{number}"))
    view.state(update(2))
    assert len(keys(view)) == ON_THEIR_WAY_MAX + 1


# ------------------------------------------------------------------ ageing


def tokens(view: InstanceView) -> int:
    return view.view().requests[0].generated_tokens


def test_a_state_moves_on_by_intervals_and_keeps_its_version_within_one(
    view: InstanceView, clock: Clock
) -> None:
    start = clock.now
    view.state(update(1, requests=[msgspec.structs.replace(running("c.1"), max_tokens=900)]))
    seen: dict[int, set[int]] = {}
    for ms in range(0, 320, 20):
        clock.now = start + ms / 1000 + 1e-6
        seen.setdefault(view.view().version, set()).add(tokens(view))
    # Step k takes 2.012 + 0.001·k ms; 49 of them 99.8, 97 of them 199.8, 143 of them 297.9.
    assert list(seen.values()) == [{3}, {3 + 49}, {3 + 97}, {3 + 143}]
    view.state(update(2, requests=[running("c.1")]))
    assert tokens(view) == 3, "what is told counts again"


def test_a_fresh_state_is_the_ledger_itself(view: InstanceView, clock: Clock) -> None:
    view.state(update(1, requests=[running("c.1")]))
    clock.now += ADVANCE_EVERY_S * 0.99
    first, second = view.view(), view.view()
    assert first.version == second.version
    assert first.requests[0] is second.requests[0]
    assert view.view().age_ms == pytest.approx(ADVANCE_EVERY_S * 990)


def test_where_no_step_fits_the_version_stays(view: InstanceView, clock: Clock) -> None:
    slow = msgspec.structs.replace(STEP, base_ms=450)
    view.state(update(1, requests=[running("c.1")], step_time=slow))
    version = view.view().version
    for _ in range(4):
        clock.now += ADVANCE_EVERY_S
        assert (view.view().version, tokens(view)) == (version, 3)
    clock.now += ADVANCE_EVERY_S
    assert (view.view().version, tokens(view)) == (version + 1, 4)


def test_a_worker_that_is_silent_for_long_is_not_taken_to_go_on(
    view: InstanceView, clock: Clock
) -> None:
    state = msgspec.structs.replace(running("c.1"), max_tokens=100_000)
    view.state(update(1, requests=[state]))
    clock.now += ADVANCE_EVERY_S * ADVANCE_MAX + 1e-6
    last = tokens(view)
    version = view.view().version
    clock.now += 2.0
    assert (view.view().version, tokens(view)) == (version, last)


def test_what_is_on_its_way_waits_behind_those_that_moved_on(
    view: InstanceView, clock: Clock
) -> None:
    view.state(update(1, requests=[running("c.1")]))
    clock.now += 0.25
    view.queued(queued("c.2"))
    moved, coming = view.view().requests
    assert moved.generated_tokens > 3
    assert (coming.key, coming.phase) == ("c.2", "waiting")


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
