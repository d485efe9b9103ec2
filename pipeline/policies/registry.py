"""All policies by name. A name may carry a parameter behind a colon: `power_of_two:3`."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.errors import UsageError
from pipeline.policies.base import Policy, by_committed, by_in_flight
from pipeline.policies.by_load import ByLoad, Formula
from pipeline.policies.fan_out import FanOut
from pipeline.policies.infaas import infaas
from pipeline.policies.least import Least, Order
from pipeline.policies.least_tokens import least_tokens
from pipeline.policies.llumnix import llumnix, llumnix_original
from pipeline.policies.lmetric import lmetric
from pipeline.policies.min_qpm import MinQpm
from pipeline.policies.polled import Polled
from pipeline.policies.power_of_two import PowerOfTwo
from pipeline.policies.random_choice import RandomChoice
from pipeline.policies.round_robin import RoundRobin
from pipeline.policies.sifted import Sifted

DEFAULT_POLICY = "sifted"
CHOICES_MAX = 1_000
POLLED_DEFAULT = "5:least_outstanding:2"
POLL_MIN_S, POLL_MAX_S = 0.001, 3600.0


@dataclass(frozen=True, slots=True)
class _Given:
    """What a policy is made from."""

    text: str
    """The name with its parameter, for errors."""
    parameter: str | None
    rng: random.Random
    clock: Callable[[], float]

    def refuse(self, why: str) -> UsageError:
        return UsageError(f"--policy {self.text}: {why}")

    def bare(self) -> random.Random:
        """All that a rule without a parameter is given."""
        if self.parameter is not None:
            raise self.refuse("it takes no parameter")
        return self.rng

    def choices(self) -> int | None:
        """How many instances to draw; None where the name does not say."""
        if self.parameter is None:
            return None
        if _is_whole(self.parameter) and 1 <= int(self.parameter) <= CHOICES_MAX:
            return int(self.parameter)
        raise self.refuse(f"the number of choices is a whole number from 1 to {CHOICES_MAX}")


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= len(str(CHOICES_MAX))


def _polled(given: _Given) -> Policy:
    parameter = POLLED_DEFAULT if given.parameter is None else given.parameter
    seconds, _, rule = parameter.partition(":")
    try:
        every_s = float(seconds)
    except ValueError:
        every_s = -1.0
    if not POLL_MIN_S <= every_s <= POLL_MAX_S or rule.partition(":")[0] != "least_outstanding":
        raise given.refuse(
            f"it is polled:SECONDS:least_outstanding[:K], with {POLL_MIN_S:g} to {POLL_MAX_S:g} s"
        )
    return Polled(make_policy(rule, given.rng, clock=given.clock), every_s, given.clock)


def _least(name: str, order: Order, reason: str) -> Callable[[_Given], Policy]:
    """One that asks nobody."""
    return lambda given: Least(name, order, reason, given.rng, of=given.choices())


def _by_load(name: str, formula: Formula) -> Callable[[_Given], Policy]:
    """One that asks all instances."""
    return lambda given: ByLoad(name, formula, given.bare())


@dataclass(frozen=True, slots=True)
class Offer:
    """A policy that can be chosen."""

    form: str
    """The name, and what may stand behind it."""
    line: str
    make: Callable[[_Given], Policy]


def _offers(*offers: Offer) -> dict[str, Offer]:
    return {offer.form.partition("[")[0]: offer for offer in offers}


POLICIES: dict[str, Offer] = _offers(
    Offer(
        "power_of_two[:K]",
        "K (2) at random, the lowest predicted cost",
        lambda given: PowerOfTwo(given.rng, choices=given.choices() or 2),
    ),
    Offer(
        "sifted[:K]",
        "of K + 4 at random the K (2) least committed, of these the lowest predicted cost",
        lambda given: Sifted(given.rng, choices=given.choices() or 2),
    ),
    Offer("fan_out", "all, the lowest predicted cost", lambda given: FanOut(given.bare())),
    Offer("random", "any one", lambda given: RandomChoice(given.bare())),
    Offer("round_robin", "one after the other", lambda given: RoundRobin(given.bare())),
    Offer(
        "min_qpm",
        "fewest sent from here in the last minute",
        lambda given: MinQpm(given.bare(), given.clock),
    ),
    Offer(
        "least_outstanding[:K]",
        "fewest in flight, of all or of K at random",
        _least("least_outstanding", by_in_flight, "fewest in flight"),
    ),
    Offer(
        "least_committed[:K]",
        "least of the KV cache promised to what is in flight, of all or of K at random",
        _least("least_committed", by_committed, "least committed"),
    ),
    Offer(
        "least_tokens[:K]",
        "fewest tokens left to compute, of all or of K at random",
        lambda given: ByLoad("least_tokens", least_tokens, given.rng, of=given.choices()),
    ),
    Offer("infaas", "most free KV blocks per running request", _by_load("infaas", infaas)),
    Offer(
        "llumnix",
        "the same, free blocks less those that waiting prompts need",
        _by_load("llumnix", llumnix),
    ),
    Offer(
        "llumnix_original",
        "as llumnix, per request, waiting ones included",
        _by_load("llumnix_original", llumnix_original),
    ),
    Offer("lmetric", "least prefill work times batch size", _by_load("lmetric", lmetric)),
    Offer(
        "polled[:SECONDS:least_outstanding[:K]]",
        f"on counts that are refreshed every SECONDS ({POLLED_DEFAULT})",
        _polled,
    ),
)


def policies_help() -> str:
    """One line a policy, for `--help`."""
    return "\n\n".join(f"{offer.form}: {offer.line}" for offer in POLICIES.values())


def make_policy(
    name: str, rng: random.Random, *, clock: Callable[[], float] = time.monotonic
) -> Policy:
    """The policy that `name` describes. Raises UsageError.

    `clock` tells seconds from any origin, to those rules that look back.
    """
    key, colon, parameter = name.partition(":")
    if key not in POLICIES:
        raise UsageError(
            f"--policy {name}: choose from {', '.join(o.form for o in POLICIES.values())}"
        )
    return POLICIES[key].make(_Given(name, parameter if colon else None, rng, clock))


def check_policy(name: str) -> None:
    """Raises UsageError where `name` describes no policy."""
    make_policy(name, random.Random(0))
