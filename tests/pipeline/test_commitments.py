"""The promised KV cache of an instance, as heard on the bus."""

import random

from hypothesis import given
from hypothesis import strategies as st

from pipeline.commitments import KNOWN_MAX, TYPICAL_TOKENS, Commitments


def test_a_sum_of_what_is_in_flight() -> None:
    there = Commitments()
    there.add("a", 100, 0.0)
    there.add("b", 300, 0.0)
    there.add("a", 100, 0.1)  # our own note and the echo
    assert there.tokens(2) == 400
    there.remove("a")
    there.remove("a")
    there.remove("never heard of")
    assert there.tokens(1) == 300


def test_what_was_not_heard_is_as_large_as_the_others() -> None:
    there = Commitments()
    assert there.tokens(3) == 3 * TYPICAL_TOKENS
    there.add("a", 100, 0.0)
    there.add("b", 300, 0.0)
    assert there.tokens(5) == 400 + 3 * 200


def test_ends_that_were_missed_leave_with_the_next_heartbeat() -> None:
    there = Commitments()
    for number in range(5):
        there.add(f"c.{number}", 100, float(number))
    there.reconcile(2, heard_before=4.0)  # the last one may not be in the heartbeat yet
    assert there.tokens(3) == 300
    there.reconcile(0, heard_before=10.0)
    assert there.tokens(0) == 0


def test_it_is_bounded() -> None:
    there = Commitments()
    for number in range(KNOWN_MAX + 10):
        there.add(str(number), 1, 0.0)
    assert there.tokens(0) == KNOWN_MAX


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_the_sum_does_not_drift(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    there, truth = Commitments(), dict[str, float]()
    for step in range(steps):
        if truth and rng.random() < 0.5:
            key = rng.choice(sorted(truth))
            del truth[key]
            there.remove(key)
        else:
            truth[str(step)] = rng.uniform(1, 5000)
            there.add(str(step), truth[str(step)], step)
    assert abs(there.tokens(len(truth)) - sum(truth.values())) < 1e-6
