"""Scores: what a forecast costs. The dispatcher takes the instance with the lower number.

Numbers of one score compare with each other and with nothing else. Every one of them is in ms,
except `slo`, which is a chance.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import erfc, inf, log, sqrt

from pipeline.errors import UsageError

DEFAULT_SCORE = "e2e"

PREEMPTION_WEIGHT_MS = 1_000.0
"""What a preemption is charged. The victim waits until blocks are free again and is computed anew,
some hundred ms of prefill on the published A30 and as much for everybody beside it; seconds in
all. E2E of the newcomer holds none of this where somebody else is the victim."""
OTHERS_WEIGHT = 1.0
"""λ, of a ms that others wait against one of one's own. At 1 the score is the change in everybody's
summed latency: the choice that is best for the mean, if nobody else came."""
SPREAD_DEFAULT = 0.15
"""Of the logarithm of actual against predicted E2E, while too little was seen. The paper reports
10 to 15 % error where the lengths are known."""
SPREAD_MIN = 0.02
"""Whoever was right so far is still not sure."""
CHANCE_STEP = 0.001
"""Chances closer than this count as equal: the error distribution is not known that well."""
TIE_MS = 1e6
"""E2E that is worth half a step of chance, in the order among equal chances."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a score may look at. Times are from now."""

    ttft_ms: float
    e2e_ms: float
    preemptions: int = 0
    """Of any request, until the newcomer finishes."""
    preemptions_horizon: int = 0
    """Of any request, until all present have finished."""
    marginal_delay_ms: float = 0.0
    """Summed delay of all others; it can be negative."""
    kv_blocks_free_min: int = 0
    deadline_ms: float | None = None
    """From now; it may have passed."""
    e2e_spread: float = SPREAD_DEFAULT
    """Standard deviation of the logarithm of actual against predicted E2E."""


Score = Callable[[Outlook], float]


def e2e(outlook: Outlook) -> float:
    """The newcomer's own end-to-end latency: the paper's."""
    return outlook.e2e_ms


def ttft(outlook: Outlook) -> float:
    """The newcomer's own time to the first token."""
    return outlook.ttft_ms


def preemption_averse(outlook: Outlook, *, weight_ms: float = PREEMPTION_WEIGHT_MS) -> float:
    """E2E, and a charge for every preemption on the whole horizon.

    The whole horizon, since the newcomer's own end cuts off what its blocks do to those that are
    longer, and since two candidates' counts then cover the same work.
    """
    return outlook.e2e_ms + weight_ms * outlook.preemptions_horizon


def marginal(outlook: Outlook, *, others_weight: float = OTHERS_WEIGHT) -> float:
    """The newcomer's own latency and the delay that it causes to others."""
    return outlook.e2e_ms + others_weight * outlook.marginal_delay_ms


def slo(outlook: Outlook) -> float:
    """The chance to miss the deadline; among equal chances, and without a deadline, by E2E."""
    missed = round(miss_chance(outlook) / CHANCE_STEP) * CHANCE_STEP
    e2e_ms = max(0.0, outlook.e2e_ms)
    # Within one step of chance, so that the order is first by chance, then by E2E.
    return missed + CHANCE_STEP * (1.0 if e2e_ms == inf else e2e_ms / (e2e_ms + TIE_MS))


def miss_chance(outlook: Outlook) -> float:
    """That the E2E is over the deadline, if actual / predicted is log-normal about 1."""
    if outlook.deadline_ms is None:
        return 0.0
    if outlook.deadline_ms <= 0 or outlook.e2e_ms == inf:
        return 1.0
    if outlook.e2e_ms <= 0:
        return 0.0
    spread = max(SPREAD_MIN, outlook.e2e_spread)
    margin = log(outlook.deadline_ms) - log(outlook.e2e_ms)
    return 0.5 * erfc(margin / (spread * sqrt(2)))


SCORES: dict[str, Score] = {
    "e2e": e2e,
    "ttft": ttft,
    "preemption_averse": preemption_averse,
    "marginal": marginal,
    "slo": slo,
}
_PARAMETERS = {"preemption_averse": "weight_ms", "marginal": "others_weight"}
_WHOLE_HORIZON = frozenset({"preemption_averse", "marginal"})


def check_score(name: str) -> None:
    """Raises UsageError, listing the names, where there is no such score."""
    make_score(name)


def make_score(name: str) -> Score:
    """The score called `name`; `preemption_averse:500` and `marginal:0.5` set its weight.

    Raises UsageError.
    """
    bare, colon, given = name.partition(":")
    if bare not in SCORES:
        raise UsageError(f"--score {name}: choose from {', '.join(SCORES)}")
    if not colon:
        return SCORES[bare]
    if bare not in _PARAMETERS:
        raise UsageError(f"--score {name}: {bare} has no parameter")
    try:
        value = float(given)
    except ValueError:
        value = -1.0
    if not 0 <= value < inf:
        raise UsageError(f"--score {name}: the weight must be finite and not negative")
    return partial(SCORES[bare], **{_PARAMETERS[bare]: value})


def needs_the_whole_horizon(name: str) -> bool:
    """Whether a forecast that ends with the newcomer is not enough."""
    return name.partition(":")[0] in _WHOLE_HORIZON
