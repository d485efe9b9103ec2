"""Policies: where does a request go? One small file each, registered here by name."""

import random
from collections.abc import Callable

from pipeline.errors import UsageError
from pipeline.policies.base import Choice, Policy, Target
from pipeline.policies.least_outstanding import LeastOutstanding
from pipeline.policies.power_of_two import PowerOfTwo
from pipeline.policies.random_choice import RandomChoice
from pipeline.policies.round_robin import RoundRobin

DEFAULT_POLICY = "power_of_two"

POLICIES: dict[str, Callable[[random.Random], Policy]] = {
    "power_of_two": PowerOfTwo,
    "random": RandomChoice,
    "round_robin": RoundRobin,
    "least_outstanding": LeastOutstanding,
    "least_outstanding_of_two": lambda rng: LeastOutstanding(rng, of=2),
}


def check_policy(name: str) -> None:
    """Raises UsageError, listing the names, where there is no such policy."""
    if name not in POLICIES:
        raise UsageError(f"--policy {name}: choose from {', '.join(POLICIES)}")


def make_policy(name: str, rng: random.Random) -> Policy:
    """The policy called `name`. Raises UsageError."""
    check_policy(name)
    return POLICIES[name](rng)


__all__ = [
    "DEFAULT_POLICY",
    "POLICIES",
    "Choice",
    "Policy",
    "Target",
    "check_policy",
    "make_policy",
]
