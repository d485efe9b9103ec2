"""The promised KV cache of an instance, as heard on the bus."""

import random

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pipeline.commitments import KNOWN_MAX, TYPICAL_TOKENS, Commitments, share_committed
from pipeline.messages import EngineLimits


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


# ------------------------------------------------------------------ as a share


def limits(**changes: int) -> EngineLimits:
    there = EngineLimits(
        rules="vllm",
        block_size=16,
        kv_blocks=1_000,
        max_num_seqs=4,
        max_num_batched_tokens=512,
        max_model_len=4_096,
    )
    return replace(there, **changes)


def test_what_is_committed_is_a_share_of_the_cache() -> None:
    assert share_committed(4_000, 3, limits()) == 0.25
    assert share_committed(4_000, 3, limits(kv_blocks=500)) == 0.5


def test_whose_batch_is_full_has_nothing_left_to_promise() -> None:
    roomy = limits(kv_blocks=100_000)
    assert share_committed(1_000, 3, roomy) < 0.001
    assert share_committed(1_000, 4, roomy) == 1.0
    assert share_committed(1_000, 6, roomy) == 1.5
    assert share_committed(32_000, 4, limits()) == 2.0
