"""How long an answer will have been, given how much of it there is: a conditional expectation.

The length model gives three quantiles. Between them the length is taken as log-normal, with a
width of its own on either side of the median. Above p90 it is a power law,

    P(length > x) = 0.1·(x / p90)^-a,

where a is the rate at which the log-normal dies out at p90, so the two join smoothly; from there
on a log-normal would die out ever faster, and real lengths do not. Measured with the shipped
length model on 3,253 prompts of ShareGPT's validation set, all turns: of the 423 answers that
outlived their p90, those that had gone on for 1, 1.25, 1.5 and 2 times p90 went on to 1.29, 1.29,
1.37 and 1.32 times what they then had. A constant share is what a power law says, and 1.29 is
a = 4.5. No answer there has over 789 tokens, so the true tail may be heavier.
"""

from functools import lru_cache
from math import ceil, erfc, exp, log, sqrt
from math import pow as power

Z = 1.2815515655446004
"""A normal variable exceeds it with probability 0.1."""
DENSITY_AT_Z = 0.17549833193248683
TOKENS_LARGEST = 1e9
WIDTH_MIN = 1e-6
"""Of the logarithm, where quantiles are equal."""
TAIL_MIN = 1.5
"""The expectation past p90 is at most three times what was generated, however wide the quantiles:
at an exponent of 1 it would be infinite, and only `tokens_max` would answer."""
OUTLIVED_TAIL = 4.5
"""The exponent past p90 is at most this, also where the quantiles were narrow: they were wrong,
and nothing says by how much. So at least 29 % of what was generated is expected on top."""
ROOT_HALF = sqrt(0.5)


def expected_total(generated: int, p10: float, p50: float, p90: float, tokens_max: int) -> int:
    """Tokens that an answer with these quantiles will have had in all, if it goes on after
    `generated`: at least one more, at most `tokens_max`.

    It never falls as `generated` grows. Equal quantiles are a length that is known. Quantiles out
    of order, infinite or no number count as the nearest that make sense.
    """
    if generated + 1 >= tokens_max:
        return tokens_max
    if p10 == p50 == p90 and generated < p50:
        expected = p50
    else:
        shape_p50, shape_p90, tail, mean, lower, upper = _shape(p10, p50, p90, tokens_max)
        if generated >= shape_p90:
            expected = _power_law(generated, tokens_max, min(tail, OUTLIVED_TAIL))
        elif generated <= 0:
            expected = mean
        else:
            middle, scale, shift, whole, beyond = lower if generated < shape_p50 else upper
            place = (log(generated) - middle) * scale
            # Twice the part of the expectation that is still ahead, and twice the survival.
            expected = (beyond - whole * erfc(shift - place)) / erfc(place)
    if expected >= tokens_max:
        return tokens_max
    total = ceil(expected)
    return total if total > generated else generated + 1


_Side = tuple[float, float, float, float, float]
"""A log-normal as far as it holds: its logarithm's mean; one over its width, over √2; the width
over √2; its own mean; and twice what it would contribute from nothing to its end, with what lengths
past the end do. `erfc` is twice a normal's tail."""
_Shape = tuple[float, float, float, float, _Side, _Side]
"""All that does not depend on what was generated: p50, p90, the exponent past p90, the mean, and
the sides below and above p50. Plain tuples, as it is looked up for every request of a forecast."""


@lru_cache(maxsize=8192)
def _shape(p10: float, p50: float, p90: float, tokens_max: int) -> _Shape:
    p10 = min(TOKENS_LARGEST, max(1.0, p10))
    p50 = min(TOKENS_LARGEST, max(p10, p50))
    p90 = min(TOKENS_LARGEST, max(p50, p90))
    most = float(tokens_max)
    middle = log(p50)
    below = max(WIDTH_MIN, (middle - log(p10)) / Z)
    above = max(WIDTH_MIN, (log(p90) - middle) / Z)
    tail = max(TAIL_MIN, DENSITY_AT_Z / (0.1 * above))
    past_p90 = 0.2 * _power_law(p90, most, tail) if p90 < most else None
    upper = _side(middle, above, p90, most, past_p90)
    past_p50 = None
    if p50 < most:
        past_p50 = upper[4] - upper[3] * erfc(above * ROOT_HALF)
    lower = _side(middle, below, p50, most, past_p50)
    return p50, p90, tail, lower[4] / 2, lower, upper


def _side(middle: float, width: float, end: float, most: float, past: float | None) -> _Side:
    """Up to `end`, or to `most` if that comes first: `past` is None then."""
    z = (log(min(end, most)) - middle) / width
    if past is None:
        past = most * erfc(z * ROOT_HALF)
    shift = width * ROOT_HALF
    mean = exp(middle + width * width / 2)
    return middle, ROOT_HALF / width, shift, mean, mean * erfc(shift - z * ROOT_HALF) + past


def _power_law(start: float, most: float, tail: float) -> float:
    """E[min(length, most) | length > start] where the survival is a power law from there on."""
    ratio = start / most
    return start * tail / (tail - 1) * (1 - power(ratio, tail - 1)) + most * power(ratio, tail)
