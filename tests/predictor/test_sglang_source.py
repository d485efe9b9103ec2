"""Our rules of SGLang against its own code, where somebody has it:

pip download --no-deps sglang==0.5.23 && unzip -q sglang-*.whl -d sglang-source
SGLANG_SOURCE=sglang-source pytest tests/predictor/test_sglang_source.py
"""

import os
import random
from pathlib import Path

import pytest

from pipeline.messages import EngineLimits
from predictor.queues import tokens_in_all
from predictor.rules.sglang_admission import token_ratios
from predictor.rules.sglang_steps import SglangScheduler
from predictor.scheduler import Sequence
from tests.predictor.sglang_source import SourceScheduler, Step

FOLDER = os.environ.get("SGLANG_SOURCE")
WORLDS = int(os.environ.get("SGLANG_WORLDS", "300"))
STEPS_MAX = 20_000

Arrival = tuple[str, int, int, int]
"""Key, prompt, tokens that it will generate, tokens that it may."""


def limits(rng: random.Random) -> EngineLimits:
    page = rng.choice([1, 1, 2, 4, 16])
    start, least = token_ratios(rng.choice([0.01, 0.05, 0.3, 1.0, 2.0]))
    return EngineLimits(
        rules="sglang",
        block_size=page,
        kv_blocks=rng.randint(6, 200 if page < 4 else 60),
        max_num_seqs=rng.randint(1, 12),
        max_num_batched_tokens=page * rng.randint(1, 16),
        max_model_len=1_000_000,
        chunked_prefill=rng.random() < 0.8,
        max_prefill_tokens=rng.choice([3, 20, 16_384]),
        new_token_ratio_start=start,
        new_token_ratio_min=least,
        new_token_ratio_decay_steps=rng.choice([3, 30, 600]),
        max_new_tokens_clip=rng.choice([2, 10, 4_096]),
        retract_decode_steps=rng.choice([0, 3, 20]),
    )


def arrivals(rng: random.Random, longest: int) -> dict[int, list[Arrival]]:
    """By the step before which they come."""
    coming: dict[int, list[Arrival]] = {}
    step = 0
    for number in range(rng.randint(1, 25)):
        step += rng.choice([0, 0, 0, 1, 3, 20])
        prompt = rng.randint(1, min(60, longest - 1))
        may = rng.randint(1, min(60, longest - prompt))
        will = rng.randint(max(1, may // 3), may) if rng.random() < 0.8 else 1
        coming.setdefault(step, []).append((f"r{number}", prompt, will, may))
    return coming


def our_step(scheduler: SglangScheduler) -> Step | None:
    if not len(scheduler):
        return None
    plan = scheduler.step()
    kind = "decode" if plan.load.context_tokens else "prefill"
    chunks = [(sequence.key, chunk) for sequence, chunk in plan.chunks]
    step = kind, chunks, scheduler.blocks_free, scheduler.admission.new_token_ratio
    scheduler.complete(plan)
    return step


@pytest.mark.skipif(FOLDER is None, reason="SGLANG_SOURCE names no folder with its source")
@pytest.mark.timeout(0)
def test_every_step_is_that_of_sglang() -> None:
    assert FOLDER is not None
    retractions = 0
    for seed in range(WORLDS):
        rng = random.Random(seed)
        drawn = limits(rng)
        coming = arrivals(rng, tokens_in_all(drawn))
        theirs, ours = SourceScheduler(Path(FOLDER), drawn), SglangScheduler(drawn)
        for number in range(STEPS_MAX):
            if not len(ours):
                assert theirs.step() is None  # it notices that it is idle
            for key, prompt, will, may in coming.pop(number, []):
                theirs.add(key, prompt, will, may)
                ours.add(Sequence(key, prompt, will, tokens_max=may))
            step, expected = our_step(ours), theirs.step()
            where = f"seed {seed}, step {number}, {drawn}"
            assert (step is None) == (expected is None), where
            if step is None or expected is None:
                if not coming:
                    break
                continue
            assert step[:3] == expected[:3], where
            assert step[3] == pytest.approx(expected[3], abs=1e-9), where
        assert not len(ours)
        retractions += ours.preemptions
    assert retractions > WORLDS / 4, "the worlds show what they are for"
