"""Lengths that need no file: mixtures of log-normals, fitted to the requests of the paper.

Fitted by maximum likelihood to the 10,000 ShareGPT first turns that the paper served, answered by
Llama-2-7B (lengths of these are in AKafakA/vidur_opt_scheduler, MIT); then the third component of
the prompts was raised a little, for the rows that are lost because prompt and answer together have
over 4,096 tokens. One log-normal does not do: prompts are short questions with a long tail of
pasted text, and answers stop near 1,000 tokens. In tokens, measured / drawn and cut at 4,096:

              mean        p10        p50          p90          p99
    prompt    246 / 245    9 / 9      35 / 35     761 / 772    2863 / 2804
    answer    326 / 326   44 / 43    286 / 287    682 / 677    1001 / 1012

Prompts and answers are tied by rank correlation alone.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import pi, sin, sqrt

import numpy as np

from evaluation.workloads.lengths import Floats, LengthTable, Tokens

ROWS = 50_000
SEED = 2508_03611
SPEARMAN = 0.138
"""Rank correlation of prompt and answer lengths in the fitted table."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """Log-normals, each with its share; what is beyond `tokens_max` is drawn again."""

    shares: tuple[float, ...]
    medians: tuple[float, ...]
    """In tokens."""
    sigmas: tuple[float, ...]
    """Standard deviations of the logarithm."""
    tokens_max: int

    def draw(self, rows: int, rng: np.random.Generator) -> Tokens:
        """`rows` lengths, each 1 to `tokens_max`, independent."""
        lengths = self._draw(rows, rng)
        while (outside := np.flatnonzero((lengths < 1) | (lengths > self.tokens_max))).size:
            lengths[outside] = self._draw(outside.size, rng)
        return lengths

    def _draw(self, rows: int, rng: np.random.Generator) -> Tokens:
        component = rng.choice(len(self.shares), size=rows, p=self.shares)
        middle = np.log(self.medians)[component]
        sigma = np.array(self.sigmas)[component]
        return np.rint(np.exp(middle + sigma * rng.standard_normal(rows))).astype(np.int64)


PROMPTS = Mixture((0.228, 0.610, 0.162), (15.8, 41.0, 1_120.0), (0.467, 1.296, 0.900), 4_090)
ANSWERS = Mixture(
    (0.144, 0.280, 0.514, 0.062), (30.0, 160.7, 383.0, 870.7), (0.817, 0.564, 0.392, 0.121), 1_800
)


@lru_cache(maxsize=1)
def synthetic_lengths() -> LengthTable:
    """A table of ROWS requests, the same at every call: one more file, only without the file."""
    rng = np.random.default_rng(SEED)
    prompts, answers = PROMPTS.draw(ROWS, rng), ANSWERS.draw(ROWS, rng)
    first, second = _tied_scores(ROWS, rng)
    return LengthTable("synthetic", _ranked_as(prompts, first), _ranked_as(answers, second))


def _tied_scores(rows: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Two standard normals with rank correlation SPEARMAN."""
    c = 2 * sin(pi * SPEARMAN / 6)  # Pearson's correlation of such a pair
    first = rng.standard_normal(rows)
    return first, c * first + sqrt(1 - c**2) * rng.standard_normal(rows)


def _ranked_as(lengths: Tokens, scores: Floats) -> Tokens:
    """The same lengths in the order of the scores (Iman and Conover 1982)."""
    ordered = np.empty_like(lengths)
    ordered[np.argsort(scores)] = np.sort(lengths)
    return ordered
