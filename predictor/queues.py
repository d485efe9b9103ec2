"""An instance's ledger as numbers that a simulation starts from, in the order of its queues.

What is published is a moment old, and inferred for some engines: it need not add up. Here it is
made to; whoever simulates may rely on every request having a token left to compute and one to
generate.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pipeline.errors import PromptTooLong
from pipeline.messages import Admission, EngineLimits, Probe, RequestState
from predictor.lengths import expected_total

ExpectedTotal = Callable[[int, float, float, float, int], int]
"""(generated, p10, p50, p90, tokens_max) to the tokens that the answer will have had in all: more
than `generated`, at most `tokens_max`."""


@dataclass(slots=True)
class Queues:
    """Columns, one row a request; `running` and `waiting` are row numbers in queue order."""

    keys: list[str] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    """Tokens to generate in all."""
    computed: list[int] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)
    tokens_max: list[int] = field(default_factory=list)
    priorities: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    decoding: int = 0
    """What `decoding_first` says."""
    waiting: list[int] = field(default_factory=list)
    never_fits: list[str] = field(default_factory=list)
    """Keys of those left out because even alone they would not fit; the engine will refuse them."""
    admission: Admission | None = None
    """None in an idle engine too, whatever it last said: it begins anew."""

    def decodes(self, row: int) -> bool:
        """Whether only its newest token still lacks a KV entry, as of one in a running list."""
        generated = self.generated[row]
        return generated > 0 and self.computed[row] == self.prompts[row] + generated - 1

    def copy(self) -> "Queues":
        """One that goes its own way."""
        return Queues(
            self.keys.copy(), self.prompts.copy(), self.targets.copy(), self.computed.copy(),
            self.generated.copy(), self.tokens_max.copy(), self.priorities.copy(),
            self.running.copy(), self.decoding, self.waiting.copy(), self.never_fits.copy(),
            self.admission,
        )  # fmt: skip

    def append(self, asked: "Newcomer") -> int:
        """The newcomer, behind all others; its row."""
        row = len(self.keys)
        self.keys.append(asked.key)
        self.prompts.append(asked.prompt)
        self.targets.append(asked.target)
        self.computed.append(0)
        self.generated.append(0)
        self.tokens_max.append(asked.tokens_max)
        self.priorities.append(asked.priority)
        self.waiting.append(row)
        return row


def tokens_in_all(limits: EngineLimits) -> int:
    """Most tokens, prompt and answer together, that one request can have.

    The last token is never computed, so it needs no KV entry. Without chunked prefill a request
    that was preempted at its longest has to be computed again within one step. SGLang clips an
    answer so that it would be admitted to an empty pool, where a page more has to be free.
    """
    blocks = limits.kv_blocks
    if limits.rules == "sglang":
        return min(limits.max_model_len - 2, (blocks - 1) * limits.block_size - 1)
    if limits.rules == "vllm-v0":
        # It lets nobody go on without a free block, and admits nobody into the watermark.
        blocks -= max(1, int(limits.watermark * blocks))
    computed_max = blocks * limits.block_size
    if not limits.chunked_prefill:
        computed_max = min(computed_max, limits.max_num_batched_tokens)
    return min(limits.max_model_len, computed_max + 1)


def resolve(
    limits: EngineLimits,
    requests: Iterable[RequestState],
    *,
    without: str | None = None,
    expected: ExpectedTotal = expected_total,
    admission: Admission | None = None,
) -> Queues:
    """The ledger's requests, each key once, `without` one; finished ones are left out."""
    queues = Queues()
    keys, prompts, targets = queues.keys, queues.prompts, queues.targets
    computed_of, generated_of = queues.computed, queues.generated
    tokens_max_of, priorities = queues.tokens_max, queues.priorities
    running, waiting = queues.running, queues.waiting
    seen = {without}
    in_all = tokens_in_all(limits)
    row = decoding = 0
    for state in requests:
        key = state.key
        if key in seen:
            continue
        prompt = state.prompt_tokens
        if prompt < 1:
            prompt = 1
        generated = state.generated_tokens
        tokens_max = in_all - prompt
        if tokens_max < 1:
            seen.add(key)
            queues.never_fits.append(key)
            continue
        if state.max_tokens < tokens_max:
            tokens_max = state.max_tokens
        if generated >= tokens_max:
            continue  # it has ended, and only the ledger does not know yet
        seen.add(key)
        phase = state.phase
        computed = 0
        if phase == "decoding" or phase == "prefilling":
            computed = state.computed_tokens
            if computed >= prompt + generated - 1:
                computed = prompt + generated - 1
                if generated:
                    decoding = decoding + 1 if decoding == len(running) else -1
            elif computed < 0:
                computed = 0
            running.append(row)
        else:
            waiting.append(row)
        computed_of.append(computed)
        keys.append(key)
        prompts.append(prompt)
        generated_of.append(generated)
        targets.append(expected(generated, state.p10, state.p50, state.p90, tokens_max))
        tokens_max_of.append(tokens_max)
        priorities.append(state.priority)
        row += 1
    queues.decoding = decoding
    if row:
        queues.admission = admission
    return queues


def decoding_first(queues: Queues) -> int:
    """How many of the running list decode, if all of them are before those that prefill; or -1."""
    decode = [queues.decodes(row) for row in queues.running]
    decoding = sum(decode)
    return decoding if all(decode[:decoding]) else -1


@dataclass(frozen=True, slots=True)
class Newcomer:
    """The request that a probe asks about, as numbers."""

    key: str
    prompt: int
    target: int
    tokens_max: int
    priority: int = 0


def newcomer(
    limits: EngineLimits, probe: Probe, expected: ExpectedTotal = expected_total
) -> Newcomer:
    """Raises PromptTooLong for one that can never fit."""
    prompt = max(1, probe.prompt_tokens)
    room = tokens_in_all(limits) - prompt
    if room < 1:
        raise PromptTooLong(
            f"a prompt of {prompt} tokens leaves no room for an answer",
            field="prompt",
            limit=prompt + room - 1,
        )
    tokens_max = min(probe.max_tokens or room, room)
    estimate = probe.estimate
    target = expected(0, estimate.p10, estimate.p50, estimate.p90, tokens_max)
    return Newcomer(probe.key, prompt, target, tokens_max, probe.priority)
