"""The rules that compare loads: each formula against numbers worked out by hand."""

import random
from collections import Counter
from math import inf

import pytest

from pipeline.messages import LengthEstimate, Load, Prediction, Probe
from pipeline.policies import Target, make_policy
from pipeline.policies.by_load import Formula
from pipeline.policies.infaas import infaas
from pipeline.policies.least_tokens import least_tokens
from pipeline.policies.llumnix import llumnix, llumnix_original
from pipeline.policies.lmetric import lmetric

NEWCOMER = Probe(
    key="c.new",
    prompt_tokens=100,
    estimate=LengthEstimate(p10=10, p50=50, p90=200, source="test"),
)
ALL = ("infaas", "llumnix", "llumnix_original", "least_tokens", "lmetric")


def load(
    *, running: int = 0, waiting: int = 0, free: int = 1000, needed: int = 0, tokens: int = 0,
    prefill: int = 0,
) -> Load:  # fmt: skip
    return Load(
        running=running,
        waiting=waiting,
        kv_blocks_free=free,
        waiting_prompt_blocks=needed,
        outstanding_tokens=tokens,
        prefill_tokens_waiting=prefill,
    )


IDLE = load()
BUSY = load(running=4, waiting=2, free=600, needed=40, tokens=3000, prefill=640)
FULL = load(running=8, free=0, tokens=9000)
QUEUED = load(running=8, waiting=5, free=0, needed=60, tokens=9900, prefill=900)
ON_THEIR_WAY = load(waiting=2, needed=10, tokens=500, prefill=160)


@pytest.mark.parametrize(
    ("formula", "of", "cost"),
    [
        (infaas, IDLE, -1000),
        (infaas, BUSY, -600 / 4),
        (infaas, FULL, 0),
        (infaas, ON_THEIR_WAY, -1000),  # it does not look at those that wait
        (llumnix, IDLE, -1000),
        (llumnix, BUSY, -(600 - 40) / 4),
        (llumnix, FULL, 0),
        (llumnix, QUEUED, 60 / 8),
        (llumnix, ON_THEIR_WAY, -990),
        (llumnix_original, IDLE, -inf),
        (llumnix_original, BUSY, -(600 - 40) / 6),
        (llumnix_original, FULL, 0),
        (llumnix_original, QUEUED, 60 / 13),
        (llumnix_original, ON_THEIR_WAY, -990 / 2),
        (least_tokens, IDLE, 150),
        (least_tokens, BUSY, 3150),
        (lmetric, IDLE, 100 * 1),
        (lmetric, BUSY, 740 * 7),
        (lmetric, FULL, 100 * 9),
        (lmetric, QUEUED, 1000 * 14),
    ],
)
def test_the_formula(formula: Formula, of: Load, cost: float) -> None:
    assert formula(of, NEWCOMER) == pytest.approx(cost)


def order(name: str, loads: dict[str, Load], *, silent: dict[str, int] | None = None) -> list[str]:
    """Instances as the policy orders them, those with a load before it was asked all alike."""
    shortlist = [Target(instance, "b", 0) for instance in loads]
    shortlist += [Target(instance, "b", count) for instance, count in (silent or {}).items()]
    policy = make_policy(name, random.Random(1))
    choice = policy.choose(policy.shortlist(shortlist), answers(loads), NEWCOMER)
    return [target.instance for target in choice.order]


def answers(loads: dict[str, Load]) -> dict[str, Prediction]:
    return {
        instance: Prediction(
            instance=instance, ttft_ms=0, e2e_ms=0, cost=0, state_age_ms=0, load=of
        )
        for instance, of in loads.items()
    }


@pytest.mark.parametrize("name", ALL)
def test_idle_first_and_the_queue_last(name: str) -> None:
    ordered = order(name, {"queued": QUEUED, "busy": BUSY, "idle": IDLE})
    assert (ordered[0], ordered[-1]) == ("idle", "queued")


@pytest.mark.parametrize("name", ALL)
def test_one_without_a_free_block_is_the_last_choice_not_dead(name: str) -> None:
    assert order(name, {"full": FULL}, silent={"mute": 0}) == ["full", "mute"]


@pytest.mark.parametrize("name", ALL)
def test_the_silent_ones_are_behind_by_count(name: str) -> None:
    silent = {"mute-9": 9, "mute-1": 1, "mute-4": 4}
    assert order(name, {"queued": QUEUED}, silent=silent) == [
        "queued",
        "mute-1",
        "mute-4",
        "mute-9",
    ]


@pytest.mark.parametrize("name", ALL)
def test_with_no_load_at_all_the_count_decides_and_says_so(name: str) -> None:
    policy = make_policy(name, random.Random(1))
    assert policy.needs == "load"
    shortlist = [Target("a", "b", 5), Target("b", "b", 2)]
    choice = policy.choose(policy.shortlist(shortlist), {}, NEWCOMER)
    assert [target.instance for target in choice.order] == ["b", "a"]
    assert choice.fallback


def test_a_prediction_without_a_load_is_no_answer() -> None:
    """A predictor that is older than the question simulates, and tells no load."""
    policy = make_policy("llumnix", random.Random(1))
    old = Prediction(instance="old", ttft_ms=1, e2e_ms=1, cost=1, state_age_ms=0)
    shortlist = [Target("old", "b", 0), Target("new", "b", 9)]
    choice = policy.choose(shortlist, {"old": old, **answers({"new": QUEUED})}, NEWCOMER)
    assert [target.instance for target in choice.order] == ["new", "old"]
    assert not choice.fallback


@pytest.mark.parametrize("name", ALL)
def test_equal_loads_are_broken_at_random_by_the_seed(name: str) -> None:
    def firsts(seed: int) -> list[str]:
        policy = make_policy(name, random.Random(seed))
        shortlist = [Target(instance, "b", 0) for instance in "abc"]
        same = answers(dict.fromkeys("abc", IDLE))
        return [policy.choose(shortlist, same, NEWCOMER).order[0].instance for _ in range(300)]

    assert min(Counter(firsts(1)).values()) > 60
    assert firsts(1) == firsts(1) != firsts(2)


def test_the_two_forms_of_llumnix_differ_in_what_a_queue_is() -> None:
    """Many short prompts that wait need few blocks, but each will be in the batch."""
    short_queue = load(running=10, waiting=30, free=500, needed=30)
    no_queue = load(running=10, free=400)
    loads = {"short-queue": short_queue, "no-queue": no_queue}
    assert order("llumnix", loads)[0] == "short-queue"
    assert order("llumnix_original", loads)[0] == "no-queue"


def test_least_tokens_of_a_few_asks_a_few() -> None:
    twelve = [Target(f"i{n}", "b", 0) for n in range(12)]
    assert len(make_policy("least_tokens:2", random.Random(1)).shortlist(twelve)) == 2
    assert len(make_policy("least_tokens", random.Random(1)).shortlist(twelve)) == 12
