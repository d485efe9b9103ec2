"""Each error model does what its name says: size, rank correlation, honest quantiles."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from evaluation.workloads.estimates import ESTIMATES, parse_estimates
from evaluation.workloads.lengths import EstimateTable, Floats, LengthTable, sample
from evaluation.workloads.synthetic import synthetic_lengths
from pipeline.errors import UsageError


def of_lengths(lengths: list[int]) -> LengthTable:
    return LengthTable("mine", np.ones(len(lengths), dtype=np.int64), np.array(lengths))


def estimate(name: str, rows: LengthTable, population: LengthTable, seed: int = 5) -> EstimateTable:
    return parse_estimates(name).estimate(rows, population, np.random.default_rng(seed))


def coverage(rows: LengthTable, quantiles: Floats) -> list[float]:
    """Shares of the answers that are no longer than p10, p50, p90."""
    return [float(share) for share in np.mean(rows.response_tokens[:, None] <= quantiles, axis=0)]


def test_the_oracle_says_the_truth() -> None:
    rows = of_lengths([1, 7, 900])
    said = estimate("oracle", rows, rows)
    assert said.quantiles.tolist() == [[1, 1, 1], [7, 7, 7], [900, 900, 900]]
    assert said.source == "oracle"


def test_the_papers_noise_is_a_clamped_factor_on_a_point() -> None:
    rows = of_lengths([1000] * 50_000)
    said = estimate("noise:30", rows, rows).quantiles
    assert np.array_equal(said[:, 0], said[:, 2])
    assert said[:, 1].mean() == pytest.approx(1000, rel=0.01)
    assert said[:, 1].std() == pytest.approx(300, rel=0.02)
    wild = estimate("noise:1000", rows, rows).quantiles[:, 1]
    assert (wild.min(), wild.max()) == (100, 5000)
    assert estimate("noise:0", rows, rows).quantiles[0].tolist() == [1000, 1000, 1000]


def test_log_normal_noise_is_as_wide_as_its_quantiles_say() -> None:
    population = synthetic_lengths()
    rows = sample(population, 20_000, np.random.default_rng(1))
    said = estimate("lognormal:0.5", rows, population).quantiles
    error = np.log(said[:, 1] / rows.response_tokens)
    assert error.std() == pytest.approx(0.5, rel=0.02)
    assert coverage(rows, said) == pytest.approx([0.1, 0.5, 0.9], abs=0.01)


@pytest.mark.parametrize("spearman", [0.0, 0.3, 0.55, 0.65, 0.9])
def test_a_calibrated_model_is_as_good_as_it_was_ordered_and_knows_it(spearman: float) -> None:
    population = synthetic_lengths()
    rows = sample(population, 20_000, np.random.default_rng(1))
    said = estimate(f"calibrated:{spearman}", rows, population)
    assert coverage(rows, said.quantiles) == pytest.approx([0.1, 0.5, 0.9], abs=0.01)
    assert said.source == f"calibrated:{spearman:g}"
    if spearman:
        measured = spearmanr(said.quantiles[:, 1], rows.response_tokens).statistic
        assert measured == pytest.approx(spearman, abs=0.012)
    else:
        assert len(np.unique(said.quantiles[:, 1])) == 1


def test_calibration_holds_among_those_that_were_called_long_and_those_called_short() -> None:
    """Honest on average is easy; it must be honest for each estimate."""
    population = synthetic_lengths()
    rows = sample(population, 40_000, np.random.default_rng(2))
    said = estimate("tagger-like", rows, population).quantiles
    fifth = np.digitize(said[:, 1], np.quantile(said[:, 1], [0.2, 0.4, 0.6, 0.8]))
    for group in range(5):
        chosen = np.flatnonzero(fifth == group)
        shares = coverage(rows.take(chosen), said[chosen])
        assert shares == pytest.approx([0.1, 0.5, 0.9], abs=0.025)


def test_log_normal_noise_is_not_honest_among_those_that_it_called_long() -> None:
    """Why `calibrated` is there: it shrinks an unlikely estimate towards the usual lengths."""
    population = synthetic_lengths()
    rows = sample(population, 20_000, np.random.default_rng(2))
    said = estimate("lognormal:0.8", rows, population).quantiles
    longest = np.flatnonzero(said[:, 1] > np.quantile(said[:, 1], 0.8))
    assert coverage(rows.take(longest), said[longest])[1] > 0.8


@given(
    lengths=st.lists(st.integers(1, 4000), min_size=1, max_size=60),
    name=st.sampled_from(
        ["oracle", "noise:100", "lognormal:2", "calibrated:0", "calibrated:1", "tagger-like"]
    ),
    seed=st.integers(0, 9),
)
@settings(max_examples=200)
def test_quantiles_are_in_order_and_at_least_one_whatever_the_lengths(
    lengths: list[int], name: str, seed: int
) -> None:
    rows = of_lengths(lengths)
    quantiles = estimate(name, rows, rows, seed).quantiles
    assert quantiles.shape == (len(lengths), 3)
    assert np.all(quantiles >= 1)
    assert np.all(np.isfinite(quantiles))
    assert np.all(np.diff(quantiles, axis=1) >= 0)


@given(st.integers(1, 200), st.sampled_from(["noise:50", "lognormal:1", "calibrated:0.6"]))
def test_fewer_rows_have_the_first_errors_of_more(few: int, name: str) -> None:
    population = synthetic_lengths()
    rows = sample(population, 200, np.random.default_rng(4))
    first = estimate(name, rows.take(np.arange(few)), population).quantiles
    assert np.array_equal(first, estimate(name, rows, population).quantiles[:few])


def test_recorded_estimates_need_a_table_that_has_them() -> None:
    rows = of_lengths([3, 4])
    with pytest.raises(UsageError, match="estimates recorded: mine has none"):
        estimate("recorded", rows, rows)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("oracel", "not one of oracle, tagger-like"),
        ("noise", "a number must follow noise:"),
        ("noise:much", "a number must follow noise:"),
        ("calibrated:1.1", "0 to 1"),
        ("calibrated:nan", "0 to 1"),
        ("lognormal:-1", "0 to 5"),
        ("noise:1001", "0 to 1000"),
        ("oracle:1", "not one of"),
    ],
)
def test_a_wrong_name_or_number_is_refused(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_estimates(name)


def test_every_name_that_is_listed_is_taken() -> None:
    said = EstimateTable(np.array([[1.0, 2.0, 3.0]]), source="model")
    rows = LengthTable("mine", np.array([5]), np.array([2]), estimates=said)
    for name in ESTIMATES:
        kind, colon, _ = name.partition(":")
        quantiles = estimate(f"{kind}{colon}0.5" if colon else kind, rows, rows).quantiles
        assert quantiles.shape == (1, 3), name
