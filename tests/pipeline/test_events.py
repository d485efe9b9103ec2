"""Whatever is lost, repeated or mixed on the way, shown text is never out of order."""

import random

from hypothesis import given
from hypothesis import strategies as st

from pipeline.events import EventFilter
from pipeline.messages import OutputEvent


def event(attempt: int, sequence: int) -> OutputEvent:
    return OutputEvent(event="tokens", id="r", attempt=attempt, sequence=sequence)


def test_in_order_all_are_shown() -> None:
    kept = EventFilter()
    assert [kept.take(event(1, n)) for n in range(4)] == [True] * 4
    assert not kept.gap


def test_repeats_and_lower_attempts_are_dropped() -> None:
    kept = EventFilter()
    assert kept.take(event(1, 0))
    assert not kept.take(event(1, 0))
    assert kept.take(event(2, 0))
    assert not kept.take(event(1, 1))
    assert not kept.gap


def test_notes_are_dropped() -> None:
    assert not EventFilter().take(event(0, 0))


def test_a_missing_event_is_a_gap_until_the_next_attempt() -> None:
    kept = EventFilter()
    kept.take(event(1, 0))
    assert kept.take(event(1, 2))
    assert kept.gap
    kept.take(event(2, 0))
    assert not kept.gap


def test_a_first_event_that_is_not_the_first_is_a_gap() -> None:
    kept = EventFilter()
    kept.take(event(1, 3))
    assert kept.gap


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=4), st.integers(0, 2**32), st.floats(0, 0.5)
)
def test_any_mixture_is_shown_in_order_and_gaps_are_exact(
    lengths: list[int], seed: int, loss: float
) -> None:
    rng = random.Random(seed)
    sent = [event(a, n) for a, length in enumerate(lengths, 1) for n in range(length)]
    arrived = [e for e in sent if rng.random() >= loss]
    arrived += [e for e in arrived if rng.random() < 0.3]
    rng.shuffle(arrived)
    kept = EventFilter()
    shown = [e for e in arrived if kept.take(e)]
    order = [(e.attempt, e.sequence) for e in shown]
    assert order == sorted(set(order))
    last = [e.sequence for e in shown if e.attempt == kept.attempt]
    assert kept.gap == (last != list(range(len(last))))


@given(st.integers(1, 30))
def test_without_loss_there_is_no_gap(length: int) -> None:
    kept = EventFilter()
    assert all(kept.take(event(1, n)) for n in range(length))
    assert not kept.gap
