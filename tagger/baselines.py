"""What a length model has to beat: three estimators that need no neural network."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline, make_union

from tagger.dataset import Row
from tagger.metrics import Array, Quality, quality

LENGTH_BINS = 20
HASHED_FEATURES = 2**18
RIDGE_ALPHA = 3.0
CHARS_READ_MAX = 2_048

Predict = Callable[[Sequence[Row]], Array]
"""Rows → log(1 + tokens), [n]."""


def baselines(
    train: Sequence[Row], sets: Mapping[str, Sequence[Row]]
) -> dict[str, dict[str, Quality]]:
    """Quality of each baseline, fitted on `train`, on each named set."""
    length = np.log1p([row.response_tokens for row in train])
    fitted = {
        "median": _median(length),
        "prompt_length": _prompt_length(train, length),
        "ridge": _ridge(train, length),
    }
    return {
        name: {title: quality(_true(rows), np.expm1(predict(rows))) for title, rows in sets.items()}
        for name, predict in fitted.items()
    }


def _true(rows: Sequence[Row]) -> Array:
    return np.array([row.response_tokens for row in rows], dtype=np.float64)


def _median(length: Array) -> Predict:
    middle = float(np.median(length))
    return lambda rows: np.full(len(rows), middle)


def _prompt_length(train: Sequence[Row], length: Array) -> Predict:
    """Median answer by twentieths of the prompt's length."""
    sizes = np.array([len(row.prompt) for row in train])
    edges = np.unique(np.quantile(sizes, np.linspace(0, 1, LENGTH_BINS + 1)[1:-1]))
    bins = np.digitize(sizes, edges)
    medians = np.array([np.median(length[bins == b]) for b in range(len(edges) + 1)])
    return lambda rows: medians[np.digitize([len(row.prompt) for row in rows], edges)]


def _ridge(train: Sequence[Row], length: Array) -> Predict:
    """Linear in hashed word 1- and 2-grams and character 3- to 5-grams."""
    words = HashingVectorizer(n_features=HASHED_FEATURES, ngram_range=(1, 2), alternate_sign=False)
    characters = HashingVectorizer(
        n_features=HASHED_FEATURES, analyzer="char_wb", ngram_range=(3, 5), alternate_sign=False
    )
    model = make_pipeline(
        make_union(words, characters),
        TfidfTransformer(sublinear_tf=True),
        Ridge(alpha=RIDGE_ALPHA, solver="sparse_cg"),
    )
    model.fit([row.prompt[:CHARS_READ_MAX] for row in train], length)
    return lambda rows: model.predict([row.prompt[:CHARS_READ_MAX] for row in rows])
