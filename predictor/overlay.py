"""A newcomer laid over what happens without it.

A newcomer at the end of the queue changes nothing until it is admitted. From then on, as long as
blocks do not run out, it changes no other request's steps either: it is the last of the running
list, so all others get their tokens before it. Only the steps take longer. So its forecast can be
read off the spans of a run without it: the sum of what its tokens add to each step.

If blocks would run out while it is there, or did without it, this says nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.messages import EngineLimits, StepTime
from predictor.lockstep import Lockstep
from predictor.spans import Span


@dataclass(slots=True)
class Laid:
    """The newcomer's way through the spans."""

    ttft_ms: float
    e2e_ms: float
    steps: int
    free_min: int
    preemptions: int
    admitted: int
    """The first span in which it ran."""
    delays_ms: list[float]
    """By how much it has delayed the others at the end of each span from then on."""
    delay_ms: float
    """In all."""


def lay_over(
    spans: list[Span],
    more: Callable[[], bool],
    first: int,
    rules: type[Lockstep],
    limits: EngineLimits,
    step_time: StepTime,
    prompt: int,
    target: int,
) -> Laid | None:
    """`more` appends a span, or returns False; no span before `first` is open.

    The last span must be one that never ends. None if blocks run out while the newcomer is there.
    """
    admitted = _admitted(spans, more, first, rules, limits, prompt)
    if admitted is None:
        return None
    size, budget = limits.block_size, limits.max_num_batched_tokens
    base_ms, flat_ms, token_ms = step_time.base_ms, step_time.flat_ms, step_time.token_ms
    context_ms, sequence_ms = step_time.context_ms, step_time.sequence_ms
    computed, left, delay, ttft_ms, offset = 0, target, 0.0, -1.0, 0
    free_min = spans[admitted - 1].free_min if admitted else limits.kv_blocks
    # By V0's rules a step that preempts may admit too; who waits again then is behind the newcomer.
    preempted = spans[admitted - 1].preemptions if admitted else 0
    delays: list[float] = []
    index = admitted
    while True:
        if index == len(spans) and not more():
            return None
        (
            steps, tokens, _, decoding, context, slot, blocks, is_open, free, free_last, _,
            preemptions, steps_before, before_ms, after_ms, _,
        ) = spans[index]  # fmt: skip
        if not is_open or preemptions != preempted:
            return None
        term = token_ms * tokens
        flat = flat_ms if flat_ms > term else term
        if computed < prompt:
            take = 1
            chunk = min(prompt - computed, budget - tokens)
            added = step_time.prefill_ms * chunk * (computed + chunk / 2)
            computed += chunk
            left -= computed == prompt
        else:
            take = min(left, steps - offset)
            chunk = 1
            added = context_ms * (take * computed + take * (take - 1) // 2)
            computed += take
            left -= take
        term = token_ms * (tokens + chunk)
        delay += added + take * ((flat_ms if flat_ms > term else term) - flat + sequence_ms)
        offset += take
        ends = offset == steps
        if ends:
            free, now = free_last, after_ms
        else:
            free -= _taken(blocks, slot, offset)
            now = before_ms + (
                offset * (base_ms + flat + sequence_ms * decoding)
                + context_ms * (offset * context + decoding * (offset * (offset - 1) // 2))
            )
        held = prompt if computed < prompt and rules.ALLOCATES_WHOLE else computed
        free -= -(-held // size)
        if free < rules.BLOCKS_SPARE:
            return None
        free_min = min(free_min, free)
        if ttft_ms < 0 and computed == prompt:
            ttft_ms = now + delay
        if ends:
            delays.append(delay)
        if left == 0:
            return Laid(
                ttft_ms, now + delay, steps_before + offset, free_min, preemptions,
                admitted, delays, delay,
            )  # fmt: skip
        if ends:
            index += 1
            offset = 0


def _admitted(
    spans: list[Span],
    more: Callable[[], bool],
    first: int,
    rules: type[Lockstep],
    limits: EngineLimits,
    prompt: int,
) -> int | None:
    """The span in whose first step the newcomer is admitted; in a later one it never is, since
    the decoding ones take blocks and give none."""
    size, budget = limits.block_size, limits.max_num_batched_tokens
    watermark = int(limits.watermark * limits.kv_blocks)
    index = first
    while index < len(spans) or more():
        span = spans[index]
        if span.open and span.running < limits.max_num_seqs:
            chunk = min(prompt, budget - span.tokens)
            if chunk > 0 and (chunk == prompt or limits.chunked_prefill):
                whole = limits.reserve_full_isl or rules.ALLOCATES_WHOLE
                required = -(-(prompt if whole else chunk) // size)
                if span.tokens or rules.WATERMARK_ALONE:
                    required += watermark
                if required <= span.free_first:
                    return index
        index += 1
    return None


def _taken(blocks: list[int], slot: int, steps: int) -> int:
    """Blocks that the decoding ones take after the first and until the last of so many steps."""
    full, rest = divmod(steps - 1, len(blocks))
    start = (slot + 1) % len(blocks)
    end = start + rest
    taken = sum(blocks[start:end]) + full * sum(blocks)
    if end > len(blocks):
        taken += sum(blocks[: end - len(blocks)])
    return taken
