"""Seeded requests that make a scheduler work: queueing, chunked prefill, preemption.

Each group has the limits of one engine, chosen so small that the thing it is named for happens.
"""

from dataclasses import dataclass
from random import Random

from evaluation.engine.steps import Arrival, Case
from pipeline.messages import EngineLimits

VOCABULARY = 4_000
"""Token ids from 10 up to here: no special ones."""
BLOCK_SIZE = 32
"""The least that vLLM's attention on processors takes."""


@dataclass(frozen=True, slots=True)
class Group:
    """One engine, and the cases that are run on it."""

    name: str
    limits: EngineLimits
    cases: list[Case]
    prefix_caching: bool = False


def limits(
    kv_blocks: int,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    watermark: float = 0.0,
) -> EngineLimits:
    return EngineLimits(
        rules="vllm",
        block_size=BLOCK_SIZE,
        kv_blocks=kv_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        watermark=watermark,
    )


def requests(
    name: str,
    count: int,
    *,
    prompt_tokens: tuple[int, int],
    tokens: tuple[int, int],
    gap_steps: float,
    seed: int,
    shared_tokens: int = 0,
) -> Case:
    """`count` requests at random steps, `gap_steps` apart on average; lengths uniform.

    The first `shared_tokens` of each prompt are the same in all of them.
    """
    rng = Random(f"{name}-{seed}")
    shared = [rng.randrange(10, VOCABULARY) for _ in range(shared_tokens)]
    arrivals, at = [], 0.0
    for number in range(count):
        length = rng.randint(*prompt_tokens)
        own = [rng.randrange(10, VOCABULARY) for _ in range(length - shared_tokens)]
        arrivals.append(Arrival(f"r{number}", int(at), shared + own, rng.randint(*tokens)))
        at += rng.expovariate(1.0) * gap_steps if gap_steps else 0.0
    return Case(f"{name}-{seed}", arrivals)


def groups(seeds: int = 3) -> list[Group]:
    """The groups that are compared; a seed more is a case more on every engine."""

    def several(name: str, count: int, **more: object) -> list[Case]:
        return [requests(name, count, seed=seed, **more) for seed in range(seeds)]  # type: ignore[arg-type]

    roomy = limits(400, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=512)
    tight = limits(12, max_num_seqs=6, max_num_batched_tokens=128, max_model_len=256)
    kept = limits(24, max_num_seqs=8, max_num_batched_tokens=96, max_model_len=384, watermark=0.1)
    return [
        Group(
            "queueing and chunked prefill",
            roomy,
            several("chunks", 40, prompt_tokens=(5, 300), tokens=(1, 60), gap_steps=3)
            + several("burst", 30, prompt_tokens=(60, 120), tokens=(2, 20), gap_steps=0),
        ),
        Group(
            "preemption",
            tight,
            several("preempt", 30, prompt_tokens=(10, 90), tokens=(20, 110), gap_steps=4)
            + several("crowd", 20, prompt_tokens=(20, 60), tokens=(60, 100), gap_steps=0),
        ),
        Group(
            "watermark",
            kept,
            several("kept", 30, prompt_tokens=(20, 200), tokens=(20, 120), gap_steps=4),
        ),
        Group(
            "prefix cache",
            roomy,
            several(
                "prefix",
                30,
                prompt_tokens=(120, 200),
                tokens=(1, 40),
                gap_steps=4,
                shared_tokens=100,
            ),
            prefix_caching=True,
        ),
    ]
