"""Seeded requests for SGLang, as cases.py has for vLLM. What `at_step` says is when they are sent;
the step before which they are there is seen."""

from evaluation.engine.cases import Group, requests
from evaluation.engine.steps import Case
from pipeline.messages import EngineLimits
from predictor.rules.sglang_admission import token_ratios

PAGE_SIZE = 16
WAVES = 5


def limits(
    kv_blocks: int,
    *,
    max_num_seqs: int,
    chunked_prefill_size: int,
    max_model_len: int,
    schedule_conservativeness: float,
) -> EngineLimits:
    start, least = token_ratios(schedule_conservativeness)
    return EngineLimits(
        rules="sglang",
        block_size=PAGE_SIZE,
        kv_blocks=kv_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=chunked_prefill_size,
        max_model_len=max_model_len,
        new_token_ratio_start=start,
        new_token_ratio_min=least,
    )


def groups(seeds: int = 1) -> list[Group]:
    """The groups that are compared. With little held back at admission, requests are retracted."""

    def several(name: str, count: int, **more: object) -> list[Case]:
        return [requests(name, count, seed=seed, **more) for seed in range(seeds)]  # type: ignore[arg-type]

    roomy = limits(
        400,
        max_num_seqs=8,
        chunked_prefill_size=64,
        max_model_len=512,
        schedule_conservativeness=1.0,
    )
    tight = limits(
        30,
        max_num_seqs=10,
        chunked_prefill_size=64,
        max_model_len=200,
        schedule_conservativeness=0.01,
    )
    return [
        Group(
            "SGLang: queueing and chunked prefill",
            roomy,
            several("chunks", 30, prompt_tokens=(5, 300), tokens=(1, 60), gap_steps=6)
            + several("burst", 30, prompt_tokens=(60, 120), tokens=(2, 20), gap_steps=0),
        ),
        Group(
            "SGLang: retraction",
            tight,
            # Once somebody was retracted more is held back, until the engine is idle: so in waves.
            [
                case
                for wave in range(WAVES)
                for case in several(
                    f"wave{wave}", 8, prompt_tokens=(5, 40), tokens=(40, 150), gap_steps=3
                )
            ],
        ),
    ]
