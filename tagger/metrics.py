"""How good length estimates are. Plain functions of two arrays; nothing here knows a model."""

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

PAIRS = 200_000


@dataclass(frozen=True, slots=True)
class Quality:
    """Figures of one estimator on one set; tokens where nothing else is said."""

    n: int
    mae: float
    median_ae: float
    rmse: float
    within_25: float
    within_50: float
    within_100: float
    within_25_percent: float
    within_50_percent: float
    spearman: float
    kendall: float
    pair_order: float
    """Share of random pairs in the right order."""
    pair_order_2x: float
    """The same where one answer is at least twice as long as the other."""
    pinball: float | None = None
    """Mean quantile loss on log(1 + tokens); None for a point estimate."""
    coverage: float | None = None
    """Share of answers between p10 and p90; 0.8 would be exact."""

    def as_dict(self) -> dict[str, float | int | None]:
        """Rounded for a card."""
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


def quality(true: Array, quantiles: Array, *, seed: int = 0) -> Quality:
    """Judge estimates [n, 3] (p10, p50, p90) or point estimates [n] against true lengths [n]."""
    point = quantiles if quantiles.ndim == 1 else quantiles[:, 1]
    error = np.abs(point - true)
    constant = bool(np.all(point == point[0]) or np.all(true == true[0]))
    order, order_2x = pair_order(true, point, seed)
    return Quality(
        n=len(true),
        mae=float(error.mean()),
        median_ae=float(np.median(error)),
        rmse=float(np.sqrt((error**2).mean())),
        within_25=float((error <= 25).mean()),
        within_50=float((error <= 50).mean()),
        within_100=float((error <= 100).mean()),
        within_25_percent=float((error <= 0.25 * true).mean()),
        within_50_percent=float((error <= 0.5 * true).mean()),
        spearman=0.0 if constant else float(np.corrcoef(ranks(true), ranks(point))[0, 1]),
        kendall=0.0 if constant else kendall(true, point),
        pair_order=order,
        pair_order_2x=order_2x,
        pinball=None if quantiles.ndim == 1 else pinball_loss(true, quantiles),
        coverage=None
        if quantiles.ndim == 1
        else float(((quantiles[:, 0] <= true) & (true <= quantiles[:, 2])).mean()),
    )


def ranks(values: Array) -> Array:
    """Rank of each value; equal ones share the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: Array = last - (counts - 1) / 2
    return shared[which]


def kendall(a: Array, b: Array) -> float:
    """Kendall's tau-b by its definition, all pairs, a row of them at a time."""
    agree = not_tied_a = not_tied_b = 0
    for at in range(len(a) - 1):
        of_a, of_b = np.sign(a[at + 1 :] - a[at]), np.sign(b[at + 1 :] - b[at])
        agree += int(of_a @ of_b)
        not_tied_a += int(np.count_nonzero(of_a))
        not_tied_b += int(np.count_nonzero(of_b))
    return agree / float(np.sqrt(float(not_tied_a) * float(not_tied_b)))


def pair_order(true: Array, point: Array, seed: int) -> tuple[float, float]:
    """Share of random pairs ordered rightly: all with different lengths, and those 2x apart.

    A tie in the estimates counts half.
    """
    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, len(true), (2, PAIRS))
    different = true[first] != true[second]
    first, second = first[different], second[different]
    right = np.sign(true[first] - true[second]) * np.sign(point[first] - point[second])
    score = (right + 1) / 2
    longer = np.maximum(true[first], true[second])
    apart = longer >= 2 * np.minimum(true[first], true[second])
    return _mean(score), _mean(score[apart])


def _mean(values: Array) -> float:
    """The mean; a half of nothing, as for a coin."""
    return float(values.mean()) if len(values) else 0.5


def pinball_loss(true: Array, quantiles: Array) -> float:
    """Mean quantile loss of p10, p50, p90 on log(1 + tokens)."""
    error = np.log1p(true)[:, None] - np.log1p(quantiles)
    level = np.array([0.1, 0.5, 0.9])
    return float(np.maximum(level * error, (level - 1) * error).mean())
