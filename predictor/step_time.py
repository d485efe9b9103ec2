"""How long one engine step takes, from what is in it, and profiles to start from.

    t = base + max(flat, token·tokens) + prefill·Σ chunk·(context + chunk/2)
        + context·Σ decode context + sequence·sequences

The hinge is the weights: up to some 64 to 128 tokens a step streams them and costs the same,
beyond that it computes and costs per token. No engine CPU time is in a profile; whoever
predicts a real engine has to learn that.

Where the profiles' figures come from (Vidur's and Astrolabe's published measurements):

* base, flat, token: least squares in log space over the medians of all non-attention GPU time
  at 1, 32, 64, … 4096 tokens, embedding and LM head left out. Worst cell: +22 % at 512 tokens on
  the A30 with Llama-2-7B, whose cells at 256 and 512 are interpolated and counted 0.3;
  elsewhere within 11 %.
* context: measured 0.62 µs a KV token (A30, Llama-2-7B) and 0.078 µs (A30, Qwen2-7B). Others are
  **estimates**: the first, scaled by memory bandwidth (A30 933, A100-80 2039, H100 3350, A40
  696 GB/s) and by the bytes of one token's KV entries on one GPU.
* prefill: measured 8.3 ns a token and token of context (A30, Qwen2-7B). Others are **estimates**:
  that, scaled by layers times width (Llama-2-7B has 1.31 times Qwen2-7B's) and between GPUs by
  their token terms, since both are bound by arithmetic.
* sequence: measured 2.1 µs (A30, Qwen2-7B), taken for all others as an **estimate**.
"""

from dataclasses import dataclass

from pipeline.messages import EngineLimits, StepTime

DEFAULT_PROFILE = "a30-llama-2-7b"


@dataclass(slots=True)
class StepLoad:
    """What is in one step, as far as its duration depends on it."""

    tokens: int = 0
    """All tokens computed in the step."""
    prefill_work: float = 0.0
    """Σ chunk·(context + chunk/2) over the prefill chunks; context is what was computed before."""
    context_tokens: int = 0
    """Σ KV entries that the decoding requests read."""
    sequences: int = 0


def step_ms(coefficients: StepTime, load: StepLoad) -> float:
    """Duration of a step with this load, in ms."""
    c = coefficients
    return (
        c.base_ms
        + max(c.flat_ms, c.token_ms * load.tokens)
        + c.prefill_ms * load.prefill_work
        + c.context_ms * load.context_tokens
        + c.sequence_ms * load.sequences
    )


def scaled(coefficients: StepTime, factor: float) -> StepTime:
    """The coefficients of an engine whose every step takes `factor` times as long."""
    return StepTime(
        base_ms=coefficients.base_ms * factor,
        flat_ms=coefficients.flat_ms * factor,
        token_ms=coefficients.token_ms * factor,
        prefill_ms=coefficients.prefill_ms * factor,
        context_ms=coefficients.context_ms * factor,
        sequence_ms=coefficients.sequence_ms * factor,
    )


PROFILES: dict[str, StepTime] = {
    DEFAULT_PROFILE: StepTime(
        base_ms=8.2,
        flat_ms=12.4,
        token_ms=0.1266,
        prefill_ms=10.8e-6,  # estimate: 8.3 ns x 1.31
        context_ms=0.62e-3,  # measured
        sequence_ms=2.1e-3,
    ),
    "a100-llama-2-7b": StepTime(
        base_ms=3.7,
        flat_ms=5.9,
        token_ms=0.0615,
        prefill_ms=5.3e-6,  # estimate: the A30's x 0.0615 / 0.1266
        context_ms=0.284e-3,  # estimate: 0.62 µs x 933 / 2039
        sequence_ms=2.1e-3,
    ),
    "h100-llama-2-7b": StepTime(
        base_ms=4.1,
        flat_ms=1.7,
        token_ms=0.0179,
        prefill_ms=1.5e-6,  # estimate: the A30's x 0.0179 / 0.1266
        context_ms=0.173e-3,  # estimate: 0.62 µs x 933 / 3350
        sequence_ms=2.1e-3,
    ),
    "a40-llama-2-7b": StepTime(
        base_ms=14.0,
        flat_ms=12.6,
        token_ms=0.121,
        prefill_ms=10.3e-6,  # estimate: the A30's x 0.121 / 0.1266
        context_ms=0.831e-3,  # estimate: 0.62 µs x 933 / 696
        sequence_ms=2.1e-3,
    ),
    "a30-qwen2-7b": StepTime(
        base_ms=13.2 + 0.52,  # the second is decode attention's constant, measured
        flat_ms=5.9,
        token_ms=0.1155,
        prefill_ms=8.3e-6,  # measured; the fit's own chunk² term would be a third higher
        context_ms=0.078e-3,  # measured
        sequence_ms=2.1e-3,  # measured
    ),
    "a100x4-llama-2-70b": StepTime(
        base_ms=12.5,
        flat_ms=13.5,
        token_ms=0.158,
        prefill_ms=6.6e-6,  # estimate: the A100's x 80·8192/4 / (32·4096)
        context_ms=0.049e-3,  # estimate: the A100's x 80 KiB / 512 KiB, + 10 % for GQA as Vidur
        sequence_ms=2.1e-3,
    ),
}
"""By GPU and model; `a100x4` is four with tensor parallelism. The A100's are of the 80 GB card."""


def _limits(kv_blocks: int, max_num_seqs: int = 48) -> EngineLimits:
    """The published experiments' settings: 16-token blocks, 512 tokens a step, 4096 in all."""
    return EngineLimits(
        rules="vllm",
        block_size=16,
        kv_blocks=kv_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=512,
        max_model_len=4096,
    )


LIMITS: dict[str, EngineLimits] = {
    DEFAULT_PROFILE: _limits(1052),
    "a100-llama-2-7b": _limits(2844, max_num_seqs=96),  # published, for the 40 GB card
    "h100-llama-2-7b": _limits(7450),  # estimate: 90 % of 80 GiB less 14.4 GB, 8 MiB a block
    "a40-llama-2-7b": _limits(3450),  # estimate: 90 % of 45 GiB less 14.4 GB, 8 MiB a block
    "a30-qwen2-7b": _limits(7289),
    "a100x4-llama-2-70b": _limits(806),  # published, for the 40 GB card
}
"""What an engine with that profile would report of itself, by profile."""
