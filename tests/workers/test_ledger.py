"""The ledger: what it makes of the engine's report, and what it tells of those that ended."""

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.messages import (
    ENDED_REPORTED_MAX,
    Decision,
    DispatchedRequest,
    LengthEstimate,
)
from workers.engine import EngineStats, Progress
from workers.ledger import ENDED_REMEMBERED_S, Ledger, Outcome


@dataclass
class World:
    """A ledger with a clock of its own, in milliseconds."""

    now_ms: float = 0.0
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = Ledger(1_000, clock=lambda: self.now_ms / 1000)

    def end(self, key: str, outcome: Outcome) -> None:
        entry = self.ledger.get(key)
        assert entry is not None
        entry.outcome = outcome
        self.ledger.remove(key)


def dispatched(
    request: str, prompt_tokens: int = 8, max_tokens: int | None = 50
) -> DispatchedRequest:
    return DispatchedRequest(
        id=request,
        client="c",
        model="default",
        request=msgspec.Raw(b"{}"),
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        estimate=LengthEstimate(p10=5, p50=10, p90=20, source="test"),
        deadline_at_ms=0.0,
        instance="a",
        boot="b",
        decision=Decision(policy="test", reason="test"),
    )


def stats(running: int = 0, /, **progress: Progress) -> EngineStats:
    exact = {f"c.{request}": at for request, at in progress.items()}
    return EngineStats(running, 0, 0, 0, progress=exact)


WAITING, PREFILLING = Progress("waiting", 0, 0), Progress("prefilling", 4, 0)


def test_an_ended_request_is_told_with_the_times_that_it_took() -> None:
    world = World()
    ledger = world.ledger
    entry = ledger.add(dispatched("r1"), inbox_ms=30.0)
    world.now_ms = 20.0
    ledger.states(stats(r1=WAITING))
    world.now_ms = 60.0
    ledger.states(stats(r1=PREFILLING))
    world.now_ms = 110.0
    ledger.grew(entry, 1)
    world.now_ms = 170.0
    ledger.grew(entry, 5)
    world.now_ms = 400.0  # the result was stored meanwhile
    world.end("c.r1", "stop")
    (ended,) = ledger.ended()
    assert (ended.key, ended.outcome, ended.answered) == ("c.r1", "stop", True)
    assert ended.waited_ms == pytest.approx(50.0)  # 30 in the inbox, 20 in the engine's queue
    assert ended.ttft_ms == pytest.approx(140.0)
    assert ended.e2e_ms == pytest.approx(200.0)
    assert not len(ledger)


def test_one_that_got_no_token_has_no_first() -> None:
    world = World()
    world.ledger.add(dispatched("r1"), inbox_ms=-5_000.0)  # the server's clock is ahead
    world.now_ms = 10.0
    world.end("c.r1", "cancelled")
    (ended,) = world.ledger.ended()
    assert (ended.ttft_ms, ended.waited_ms, ended.answered) == (None, 0.0, False)
    assert ended.e2e_ms == pytest.approx(10.0)


def test_what_nobody_ended_otherwise_was_handed_back() -> None:
    world = World()
    world.ledger.add(dispatched("r1"))
    world.ledger.remove("c.r1")
    world.ledger.remove("c.r1")
    assert [ended.outcome for ended in world.ledger.ended()] == ["handed_back"]


def test_preemption_after_the_first_token_is_no_waiting_for_it() -> None:
    world = World()
    entry = world.ledger.add(dispatched("r1"))
    world.now_ms = 5.0
    world.ledger.grew(entry, 1)
    world.now_ms = 50.0
    world.ledger.states(stats(r1=Progress("waiting", 0, 1)))
    world.end("c.r1", "stop")
    assert world.ledger.ended()[0].waited_ms == 0.0


def test_ends_are_told_for_some_seconds_and_no_more_than_so_many() -> None:
    world = World()
    for number in range(ENDED_REPORTED_MAX + 10):
        world.ledger.add(dispatched(f"r{number}"))
        world.ledger.remove(f"c.r{number}")
    told = world.ledger.ended()
    assert len(told) == ENDED_REPORTED_MAX
    assert told[-1].key == f"c.r{ENDED_REPORTED_MAX + 9}"
    world.now_ms = ENDED_REMEMBERED_S * 1000 + 1
    assert world.ledger.ended() == []


def test_the_engines_report_decides_the_order_and_the_counts() -> None:
    ledger = World().ledger
    for request in ("r1", "r2", "r3"):
        ledger.add(dispatched(request))
    states = ledger.states(stats(r2=Progress("decoding", 12, 5), r1=WAITING))
    assert [(s.key, s.phase, s.computed_tokens, s.generated_tokens) for s in states] == [
        ("c.r2", "decoding", 12, 5),
        ("c.r1", "waiting", 0, 0),
        ("c.r3", "waiting", 0, 0),  # not yet in the engine
    ]


def test_what_the_engine_has_let_go_of_is_gone_though_its_result_is_not_stored_yet() -> None:
    ledger = World().ledger
    entry = ledger.add(dispatched("r1"))
    ledger.add(dispatched("r2"))
    ledger.grew(entry, 9)
    assert [s.key for s in ledger.states(stats(r2=WAITING))] == ["c.r2"]


def test_a_request_of_which_only_the_engine_knows_is_left_out() -> None:
    ledger = World().ledger
    ledger.add(dispatched("r1"))
    assert [s.key for s in ledger.states(stats(r9=PREFILLING, r1=WAITING))] == ["c.r1"]


def test_without_an_exact_report_tokens_and_the_count_of_running_tell_the_phase() -> None:
    ledger = World().ledger
    entries = {request: ledger.add(dispatched(request)) for request in ("r1", "r2", "r3")}
    ledger.grew(entries["r2"], 3)
    states = {s.key: (s.phase, s.computed_tokens) for s in ledger.states(stats(2))}
    assert states == {"c.r1": ("prefilling", 0), "c.r2": ("decoding", 10), "c.r3": ("waiting", 0)}


def test_max_tokens_is_what_the_model_has_room_for() -> None:
    ledger = World().ledger
    ledger.add(dispatched("r1", prompt_tokens=900, max_tokens=None))
    ledger.add(dispatched("r2", prompt_tokens=900, max_tokens=500))
    ledger.add(dispatched("r3", prompt_tokens=5_000))
    assert [s.max_tokens for s in ledger.states(stats())] == [100, 100, 1]


REQUESTS = ("r1", "r2", "r3", "r4")
ACTIONS = st.tuples(
    st.sampled_from(["add", "grow", "look", "end"]),
    st.sampled_from(REQUESTS),
    st.floats(0, 1_000),
)


@given(st.lists(ACTIONS, max_size=40))
def test_whatever_happens_its_times_are_in_order(actions: list[tuple[str, str, float]]) -> None:
    world = World()
    ledger = world.ledger
    tokens = 0
    for action, request, ms in actions:
        world.now_ms += ms
        entry = ledger.get(f"c.{request}")
        if action == "add" and entry is None:
            ledger.add(dispatched(request), inbox_ms=ms)
        elif action == "grow" and entry is not None:
            tokens += 1
            ledger.grew(entry, tokens)
        elif action == "look":
            ledger.states(stats(**{request: WAITING}))
        elif action == "end":
            ledger.remove(f"c.{request}")
        for ended in ledger.ended():
            first_ms = ended.e2e_ms if ended.ttft_ms is None else ended.ttft_ms
            assert 0 <= ended.waited_ms <= first_ms + 1e-6
            assert first_ms <= ended.e2e_ms + 1e-6
