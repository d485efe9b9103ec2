"""Who is compared: a policy, with its score where it asks for predictions.

Every contender has one colour in all plots; what is not in the list gets one of the others, in
order of appearance.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.policies import DEFAULT_POLICY, check_policy
from predictor.scores import DEFAULT_SCORE, check_score

PAPERS_SCORE = "e2e"


@dataclass(frozen=True, slots=True)
class Contender:
    """Named by its policy, and `policy/score` where the score is not the default."""

    policy: str
    score: str = DEFAULT_SCORE

    @property
    def label(self) -> str:
        return self.policy if self.score == DEFAULT_SCORE else f"{self.policy}/{self.score}"


OURS = Contender(DEFAULT_POLICY)
"""What the pipeline does when nobody says otherwise."""
PAPERS = Contender("power_of_two", PAPERS_SCORE)
LEAST_OUTSTANDING_OF_TWO = Contender("least_outstanding:2")
LLUMNIX = Contender("llumnix")
FAN_OUT = Contender("fan_out")
LEAST_COMMITTED = Contender("least_committed")
OBLIVIOUS = tuple(Contender(policy) for policy in ("round_robin", "random", "min_qpm"))


def parse_contenders(text: str) -> tuple[Contender, ...]:
    """Of `llumnix,power_of_two/e2e`: policies, each with a score where it is not the default; ours
    is always among them. Raises UsageError."""
    chosen = []
    for name in text.split(","):
        policy, slash, score = name.partition("/")
        check_policy(policy)
        if slash:
            check_score(score)
        chosen.append(Contender(policy, score if slash else DEFAULT_SCORE))
    return unique((*chosen, OURS))


def unique(contenders: Iterable[Contender]) -> tuple[Contender, ...]:
    """Each once: the paper's score may be the default."""
    return tuple(dict.fromkeys(contenders))


FEW = unique((LLUMNIX, LEAST_OUTSTANDING_OF_TWO, LEAST_COMMITTED, PAPERS, OURS))
"""Where settings are many: the paper's best baseline, what routers do, the best that asks nobody,
the paper's, ours."""
CONTENDERS = unique(
    (
        *OBLIVIOUS,
        Contender("infaas"),
        LLUMNIX,
        Contender("llumnix_original"),
        Contender("least_outstanding"),
        LEAST_OUTSTANDING_OF_TWO,
        LEAST_COMMITTED,
        Contender("least_tokens"),
        Contender("lmetric"),
        FAN_OUT,
        PAPERS,
        OURS,
    )
)
"""Weakest first, so that ours are drawn over the others."""
