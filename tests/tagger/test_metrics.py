"""Figures worked out by hand."""

import numpy as np
import pytest

from tagger.metrics import kendall, pair_order, pinball_loss, quality, ranks


def test_errors_and_shares() -> None:
    true = np.array([100.0, 200.0, 400.0, 10.0])
    estimate = np.array([120.0, 140.0, 395.0, 10.0])
    judged = quality(true, estimate)
    assert judged.mae == pytest.approx((20 + 60 + 5 + 0) / 4)
    assert judged.median_ae == pytest.approx(12.5)
    assert (judged.within_25, judged.within_50, judged.within_100) == (0.75, 0.75, 1.0)
    assert judged.within_25_percent == 0.75
    assert judged.spearman == pytest.approx(1.0)
    assert judged.pinball is None


def test_equal_values_share_their_ranks() -> None:
    assert ranks(np.array([30.0, 10.0, 30.0, 20.0])).tolist() == [3.5, 1.0, 3.5, 2.0]


def test_rank_correlations() -> None:
    true = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    estimate = np.array([2.0, 1.0, 4.0, 3.0, 5.0])
    judged = quality(true, estimate)
    assert judged.spearman == pytest.approx(1 - 6 * 4 / (5 * 24))
    assert judged.kendall == pytest.approx((8 - 2) / 10)


def test_kendall_with_ties() -> None:
    # Of six pairs five differ in b; four of those agree and one does not: tau-b.
    a, b = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 3.0, 2.0, 3.0])
    assert kendall(a, b) == pytest.approx((4 - 1) / np.sqrt(6 * 5))


def test_pairs_in_order() -> None:
    true = np.array([1.0, 2.0, 4.0])
    assert pair_order(true, np.array([1.0, 2.0, 3.0]), 0) == (1.0, 1.0)
    assert pair_order(true, np.array([3.0, 2.0, 1.0]), 0) == (0.0, 0.0)
    assert pair_order(true, np.array([7.0, 7.0, 7.0]), 0) == (0.5, 0.5)


def test_a_constant_has_no_rank_correlation() -> None:
    assert quality(np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0])).spearman == 0.0


def test_pinball_and_coverage() -> None:
    true = np.array([9.0])
    quantiles = np.array([[9.0, 9.0, 9.0]])
    assert pinball_loss(true, quantiles) == pytest.approx(0.0)
    off = np.expm1(np.log1p(true) - 1.0)  # one too low in log space
    expected = (0.1 + 0.5 + 0.9) / 3
    assert pinball_loss(true, np.array([[off[0]] * 3])) == pytest.approx(expected)
    assert quality(true, np.array([[1.0, 5.0, 20.0]])).coverage == 1.0
