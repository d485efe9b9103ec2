"""Rows are taken by seed, each once before any comes twice, and only those that fit the model."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.workloads.lengths import EstimateTable, LengthTable, sample, stretch
from pipeline.errors import UsageError


def table(rows: int, *, timed: bool = False) -> LengthTable:
    """Row i has i + 1 prompt tokens and twice that many of answer, and came at second i."""
    prompts = np.arange(1, rows + 1)
    at_ms = 1000 * prompts.astype(np.float64)
    return LengthTable("rows", prompts, 2 * prompts, at_ms=at_ms if timed else None)


@given(st.integers(1, 50), st.integers(1, 200), st.integers(0, 9))
def test_no_row_comes_again_before_all_came(rows: int, requests: int, seed: int) -> None:
    taken = sample(table(rows), requests, np.random.default_rng(seed))
    assert len(taken) == requests
    assert np.array_equal(taken.response_tokens, 2 * taken.prompt_tokens)
    times_taken = np.bincount(taken.prompt_tokens, minlength=rows + 1)[1:]
    assert times_taken.max() - times_taken.min() <= 1


@given(st.integers(1, 50), st.integers(1, 100), st.integers(1, 100), st.integers(0, 9))
def test_fewer_requests_are_the_first_of_more(rows: int, few: int, more: int, seed: int) -> None:
    first = sample(table(rows), few, np.random.default_rng(seed)).prompt_tokens
    longer = sample(table(rows), few + more, np.random.default_rng(seed)).prompt_tokens
    assert np.array_equal(first, longer[:few])


def test_another_seed_is_another_order() -> None:
    one, two = (sample(table(100), 100, np.random.default_rng(seed)) for seed in (1, 2))
    assert not np.array_equal(one.prompt_tokens, two.prompt_tokens)
    assert set(one.prompt_tokens) == set(two.prompt_tokens)


def test_rows_that_do_not_fit_the_model_are_left_out() -> None:
    assert table(10).fitting(18).prompt_tokens.tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(UsageError, match="max_model_len 2"):
        table(10).fitting(2)


@given(st.integers(1, 30), st.integers(0, 9), st.data())
def test_a_stretch_is_one_piece_of_the_trace(rows: int, seed: int, data: st.DataObject) -> None:
    requests = data.draw(st.integers(1, rows))
    taken, at_ms = stretch(table(rows, timed=True), requests, np.random.default_rng(seed))
    assert np.array_equal(np.diff(taken.prompt_tokens), np.ones(requests - 1))
    assert np.array_equal(at_ms, 1000.0 * taken.prompt_tokens)


def test_a_trace_is_never_begun_anew_or_invented() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(UsageError, match="11 requests wanted, the trace has 10"):
        stretch(table(10, timed=True), 11, rng)
    with pytest.raises(UsageError, match="no time stamps"):
        stretch(table(10), 5, rng)


def test_estimates_and_limits_stay_with_their_rows() -> None:
    prompts = np.arange(1, 6)
    said = EstimateTable(np.outer(prompts, [1.0, 2.0, 3.0]), source="model")
    full = LengthTable("rows", prompts, prompts, max_tokens=10 * prompts, estimates=said)
    taken = sample(full, 5, np.random.default_rng(3))
    assert taken.estimates is not None
    assert taken.max_tokens is not None
    assert np.array_equal(taken.estimates.quantiles[:, 1], 2.0 * taken.prompt_tokens)
    assert np.array_equal(taken.max_tokens, 10 * taken.prompt_tokens)


@pytest.mark.parametrize(
    ("prompts", "answers", "at_ms", "said"),
    [
        ([], [], None, "no rows"),
        ([1, 0], [1, 1], None, "prompt_tokens must be at least 1"),
        ([1, 1], [1, 0], None, "response_tokens must be at least 1"),
        ([1, 1], [1], None, "different lengths"),
        ([1, 1], [1, 1], [2.0, 1.0], "never fall"),
    ],
)
def test_a_wrong_table_is_named(
    prompts: list[int], answers: list[int], at_ms: list[float] | None, said: str
) -> None:
    with pytest.raises(UsageError, match=f"mine: .*{said}"):
        LengthTable(
            "mine",
            np.array(prompts, dtype=np.int64),
            np.array(answers, dtype=np.int64),
            at_ms=None if at_ms is None else np.array(at_ms),
        )


def test_a_table_cannot_be_changed_by_one_of_its_users() -> None:
    shared = table(3)
    with pytest.raises(ValueError, match="read-only"):
        shared.prompt_tokens[0] = 7
