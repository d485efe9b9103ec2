"""The lengths that need no file are close to the requests of the paper, quantile by quantile."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from evaluation.workloads.synthetic import ANSWERS, PROMPTS, SPEARMAN, Mixture, synthetic_lengths

MAX_MODEL_LEN = 4_096
# Of the 10,000 ShareGPT first turns answered by Llama-2-7B.
MEASURED_PROMPTS = {10: 9, 25: 16, 50: 35, 75: 143, 90: 761, 95: 1423, 99: 2862}
MEASURED_ANSWERS = {10: 44, 25: 136, 50: 286, 75: 446, 90: 681, 95: 839, 99: 1000}


def test_prompts_are_those_of_the_paper() -> None:
    prompts = synthetic_lengths().fitting(MAX_MODEL_LEN).prompt_tokens
    assert prompts.mean() == pytest.approx(245.8, rel=0.03)
    for percent, tokens in MEASURED_PROMPTS.items():
        assert np.percentile(prompts, percent) == pytest.approx(tokens, rel=0.07), percent


def test_answers_are_those_of_the_paper() -> None:
    answers = synthetic_lengths().fitting(MAX_MODEL_LEN).response_tokens
    assert answers.mean() == pytest.approx(325.6, rel=0.02)
    for percent, tokens in MEASURED_ANSWERS.items():
        assert np.percentile(answers, percent) == pytest.approx(tokens, rel=0.04), percent


def test_almost_all_of_it_fits_the_papers_model() -> None:
    table = synthetic_lengths()
    assert len(table.fitting(MAX_MODEL_LEN)) > 0.995 * len(table)


def test_longer_prompts_have_slightly_longer_answers() -> None:
    table = synthetic_lengths()
    measured = spearmanr(table.prompt_tokens, table.response_tokens).statistic
    assert measured == pytest.approx(SPEARMAN, abs=0.015)


@given(st.sampled_from([PROMPTS, ANSWERS]), st.integers(0, 99))
def test_lengths_keep_their_bounds(mixture: Mixture, seed: int) -> None:
    lengths = mixture.draw(500, np.random.default_rng(seed))
    assert len(lengths) == 500
    assert lengths.min() >= 1
    assert lengths.max() <= mixture.tokens_max
    assert sum(mixture.shares) == pytest.approx(1)
