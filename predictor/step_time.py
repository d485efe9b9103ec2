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


@dataclass(frozen=True, slots=True)
class ModelNumbers:
    """What a model's card and configuration say."""

    parameters: float
    """Computed for every token: without the input embedding, of a mixture only the active ones."""
    layers: int
    width: int
    """Hidden size."""
    kv_heads_share: float = 1.0
    """Key-value heads / attention heads: below 1 with grouped queries."""
    weight_bytes: float = 2.0
    """Of one parameter."""
    kv_bytes: float = 2.0
    """Of one number in the KV cache."""
    weights_streamed: float | None = None
    """Parameters that a step reads if that is more: a mixture's experts, nearly all of them as
    soon as a batch is there."""


@dataclass(frozen=True, slots=True)
class GpuNumbers:
    """What a GPU's data sheet says."""

    bandwidth_gb_s: float
    tflops: float
    """Dense, in the precision that the model computes in."""
    count: int = 1
    """With tensor parallelism."""


GPUS: dict[str, GpuNumbers] = {
    "a30": GpuNumbers(933, 165),
    "a40": GpuNumbers(696, 149.7),
    "a100": GpuNumbers(2039, 312),
    "h100": GpuNumbers(3350, 989),
}
"""16-bit; the A100's is the 80 GB card, the H100 the SXM one."""

STREAMING = 1.48
"""Time of a step with one token against reading the weights at full bandwidth. The six profiles
have 1.41 to 1.54: launches, norms, what does not overlap."""
ARITHMETIC = 0.68
"""Share of the data sheet's arithmetic that the token term reaches. The profiles: 0.62 to 0.73."""
KNEE_TOKENS = 92.0
"""Where token·tokens overtakes flat. The profiles: 51 to 104, with no order by GPU."""
ATTENTION_BANDWIDTH = 0.85
"""Reached when KV entries are read. Measured on the A30: 0.91, with grouped queries 0.79."""
ATTENTION_ARITHMETIC = 0.29
"""Reached by prefill attention; measured on the A30 with Qwen2-7B."""
SEQUENCE_MS = 2.1e-3
"""Measured there too."""


def estimated(model: ModelNumbers, gpu: GpuNumbers) -> StepTime:
    """A profile for what none was measured for: within some 10 % of those that were, 25 % in the
    split between base and flat, and for other kinds of model a guess. The fit starts from it."""
    bytes_a_ms = gpu.bandwidth_gb_s * 1e6 * gpu.count
    flop_a_ms = gpu.tflops * 1e9 * gpu.count
    streamed = max(model.parameters, model.weights_streamed or 0.0)
    whole_ms = STREAMING * streamed * model.weight_bytes / bytes_a_ms
    token_ms = 2 * model.parameters / (flop_a_ms * ARITHMETIC)
    # A mixture streams more than it computes: its hinge is as far out as that.
    knee = KNEE_TOKENS * streamed / model.parameters
    flat_ms = min(whole_ms, knee * token_ms)
    kv_entry_bytes = 2 * model.layers * model.width * model.kv_heads_share * model.kv_bytes
    return StepTime(
        base_ms=whole_ms - flat_ms,
        flat_ms=flat_ms,
        token_ms=token_ms,
        prefill_ms=4 * model.layers * model.width / (flop_a_ms * ATTENTION_ARITHMETIC),
        context_ms=kv_entry_bytes / (bytes_a_ms * ATTENTION_BANDWIDTH),
        sequence_ms=SEQUENCE_MS,
    )
