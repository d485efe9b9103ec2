"""Everything that travels on the bus, as frozen structs. docs/protocol.md is its prose.

Decoding is strict about types and limits and lenient about unknown fields, so that a newer
writer does not break an older reader. Instants are wall-clock milliseconds since the epoch and
end in `_at_ms`; durations end in `_ms`. Wall clocks never decide anything inside one process.
"""

import time
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

PROMPT_BYTES_MAX = 1024 * 1024
MAX_TOKENS_LIMIT = 1_048_576
DEADLINE_MS_MAX = 24 * 3600 * 1000
DEADLINE_MS_DEFAULT = 10 * 60 * 1000  # every wait has a deadline, also where nobody set one
ID_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"

Id = Annotated[str, Meta(pattern=ID_PATTERN)]
Count = Annotated[int, Meta(ge=0)]
Key = Annotated[str, Meta(min_length=1, max_length=512)]
"""`<client>.<id>`, a request's name on the bus."""


def wall_ms() -> float:
    """Wall-clock milliseconds since the epoch."""
    return time.time_ns() / 1e6


class Wire(Struct, frozen=True, omit_defaults=True):
    """Base of all JSON messages: immutable, defaults left out on the wire."""


# ------------------------------------------------------------------ client → tagger


class ChatMessage(Wire, frozen=True, kw_only=True):
    """One turn of a conversation, as in the OpenAI API; `content` is plain text."""

    role: Annotated[str, Meta(min_length=1, max_length=32)]
    content: str


class Request(Wire, frozen=True, kw_only=True):
    """What a client publishes. Field names are the OpenAI API's where it has one."""

    id: Id
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=1024)] | None = None
    model: Annotated[str, Meta(max_length=256)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS_LIMIT)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    stop: (
        Annotated[str, Meta(max_length=256)]
        | Annotated[list[Annotated[str, Meta(max_length=256)]], Meta(max_length=16)]
        | None
    ) = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Annotated[int, Meta(ge=1, le=1)] = 1
    stream: bool = True
    ignore_eos: bool = False
    """Generate exactly `max_tokens`, as vLLM's parameter of that name: for load tests."""
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    """Lower is sooner."""
    deadline_ms: Annotated[int, Meta(ge=1, le=DEADLINE_MS_MAX)] | None = None
    """From acceptance to the last token."""
    on_disconnect: Literal["finish", "cancel"] = "finish"
    metadata: (
        Annotated[
            dict[
                Annotated[str, Meta(max_length=64)],
                Annotated[str, Meta(max_length=512)],
            ],
            Meta(max_length=16),
        ]
        | None
    ) = None
    """Handed through to the engine and the result. The simulated engine reads
    `response_tokens` from it as the answer's natural length; nothing before it does."""
    sent_at_ms: float | None = None


class Cancel(Wire, frozen=True, kw_only=True):
    """Body of a cancel; it names the request again so that an empty publish is no cancel."""

    id: Id
    reason: Annotated[str, Meta(max_length=256)] = "client"


# ------------------------------------------------------------------ between the stages


class LengthEstimate(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """Tokens that the answer is expected to have, and what said so."""

    p10: float
    p50: float
    p90: float
    source: str
    correction: Annotated[float, Meta(gt=0)] = 1.0
    """What the model's own quantiles were multiplied with, learnt from earlier answers."""
    capped: bool = False
    """`max_tokens` is below p90: how the answer ends says little of the estimate."""


class Trace(Wire, frozen=True, kw_only=True):
    """When each stage took the request; a duration where the name says so."""

    sent_at_ms: float | None = None
    accepted_at_ms: float | None = None
    tagger_received_at_ms: float | None = None
    estimate_ms: float | None = None
    """Time that the length model took, its queue included."""
    tagged_at_ms: float | None = None
    dispatcher_received_at_ms: float | None = None
    probed_at_ms: float | None = None
    dispatched_at_ms: float | None = None
    worker_received_at_ms: float | None = None
    engine_accepted_at_ms: float | None = None
    first_token_at_ms: float | None = None
    finished_at_ms: float | None = None


class TaggedRequest(Wire, frozen=True, kw_only=True):
    """A checked request with its estimate. `request` stays encoded: only the engine reads it."""

    id: str
    client: str
    model: str
    """Slug of the model, as in the subject; the true name is in the request."""
    request: msgspec.Raw
    prompt_tokens: int
    max_tokens: int | None
    estimate: LengthEstimate
    priority: int = 0
    deadline_at_ms: float
    attempt: int = 1
    """Grows with every run, so that a client can tell the runs' events apart."""
    crashes: int = 0
    """Runs that ended because a worker died. Bounded; a refusal or a hand-back is none."""
    trace: Trace = Trace()
    traceparent: str | None = None
    """W3C trace context, as the request's header had it; every hop repeats it as a header."""

    @property
    def key(self) -> str:
        """`<client>.<id>`, the request's name on the bus."""
        return f"{self.client}.{self.id}"


class Probe(Wire, frozen=True, kw_only=True):
    """Dispatcher to predictor: what if this request came to you?"""

    key: Key
    prompt_tokens: Count
    max_tokens: Count | None = None
    estimate: LengthEstimate
    priority: int = 0
    deadline_ms: float | None = None
    """From now; for scores that look at it."""
    kind: Literal["simulate", "load"] = "simulate"
    """What is asked for: a forecast of the request, or only how loaded the instance is."""


class Load(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """How loaded an instance is; predictor/load.py counts it. Requests that are on their way to
    the instance count as waiting."""

    running: Count
    waiting: Count
    kv_blocks_free: Count
    waiting_prompt_blocks: Count
    """KV blocks that the prompts of all waiting requests need."""
    outstanding_tokens: Count
    """Σ over all requests of max(0, prompt + expected answer - computed)."""
    prefill_tokens_waiting: Count
    """Prompt tokens that are not computed yet, of all requests."""


class Prediction(Wire, frozen=True, kw_only=True):
    """Predictor's answer. Times are from now, as the requester would see them."""

    instance: str
    boot: str = ""
    ttft_ms: float
    e2e_ms: float
    tpot_ms: float = 0.0
    preemptions: int = 0
    """Of any request, until the newcomer finishes."""
    kv_blocks_peak: int = 0
    cost: float
    """What the policy compares; lower is better. The configured score made it."""
    state_age_ms: float
    requests: int = 0
    """Requests that the simulation started with, those on their way included."""
    steps: int = 0
    extrapolated: bool = False
    """The simulation was cut short; the times go on from its mean step."""
    from_queue: bool = False
    """The predictor's own record was worse than a plain queue-length estimate: these times are
    that estimate's."""
    load: Load | None = None
    """The answer to a probe of kind `load`. Nothing was simulated then: times and cost are 0."""


class Candidate(Wire, frozen=True, kw_only=True):
    """One instance that the dispatcher considered, and what became of its probe."""

    instance: str
    outcome: Literal["predicted", "reported", "refused", "timeout", "failed", "not_probed"]
    """`reported`: the policy asked for its load, not for a prediction. `refused`: the request can
    never run there."""
    prediction: Prediction | None = None
    load: Load | None = None
    in_flight: int = 0
    """The dispatcher's own count for the instance."""


class Decision(Wire, frozen=True, kw_only=True):
    """Why a request went where it went."""

    policy: str
    reason: str
    candidates: list[Candidate] = []
    fallback: bool = False


class DispatchedRequest(TaggedRequest, frozen=True, kw_only=True):
    """A request in an instance's inbox."""

    instance: str
    boot: str
    decision: Decision


# ------------------------------------------------------------------ worker → client


class Usage(Wire, frozen=True, kw_only=True, omit_defaults=False):
    prompt_tokens: int
    completion_tokens: int


class ErrorBody(Wire, frozen=True, kw_only=True):
    """Why a request failed: a stable code, a sentence, and the field and limit concerned."""

    code: str
    message: str
    field: str | None = None
    limit: int | float | str | None = None
    retry_after_ms: int | None = None


FinishReason = Literal["stop", "length"]


class OutputEvent(Wire, frozen=True, kw_only=True):
    """One event on `output.<client>.<request>`; `done` and `error` are final."""

    event: Literal["tokens", "restart", "resume", "done", "error"]
    id: str
    attempt: int
    """0 marks a note about a repeated publish; it never ends the request itself."""
    sequence: int
    """From 0 within an attempt, without gaps."""
    text: str = ""
    tokens: int = 0
    """Tokens in this event."""
    from_token: int | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    error: ErrorBody | None = None
    instance: str | None = None

    @property
    def final(self) -> bool:
        return self.event in ("done", "error") and self.attempt > 0


class Result(Wire, frozen=True, kw_only=True):
    """The one stored outcome of a request."""

    id: str
    client: str
    model: str
    status: Literal["done", "error"]
    attempt: int
    sequence: int = 0
    """Sequence number of the final event."""
    stream: bool = True
    """Whether tokens were streamed; if not, the final event carries the text."""
    text: str = ""
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    error: ErrorBody | None = None
    instance: str | None = None
    crashes: int = 0
    preemptions: int = 0
    estimate: LengthEstimate | None = None
    decision: Decision | None = None
    metadata: dict[str, str] | None = None
    trace: Trace = Trace()
    traceparent: str | None = None

    @property
    def key(self) -> str:
        return f"{self.client}.{self.id}"


# ------------------------------------------------------------------ worker → predictor, dispatchers


class StepTime(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """Coefficients of one step's duration in ms; predictor/step_time.py has the formula."""

    base_ms: float
    """c0: what every step costs."""
    flat_ms: float
    """Floor of the token term: streaming the weights."""
    token_ms: float
    """c1: per token in the batch once that is above the floor."""
    prefill_ms: float
    """c2: per prefill token and token of context that it attends to."""
    context_ms: float
    """c3: per token of context of the decoding requests."""
    sequence_ms: float
    """c4: per request in the batch."""


class EngineLimits(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """What bounds the engine's scheduler, read from the engine itself."""

    rules: Literal["vllm", "vllm-v0", "sglang"]
    """Whose scheduler it is; what a field below says of one of them, the others ignore."""
    block_size: int
    """SGLang: the page size."""
    kv_blocks: int
    """Usable blocks of `block_size` tokens."""
    max_num_seqs: int
    """SGLang: `max_running_requests`."""
    max_num_batched_tokens: int
    """SGLang: `chunked_prefill_size`, which bounds a prefill batch; a multiple of the page size."""
    max_model_len: int
    """SGLang: the context length."""
    chunked_prefill: bool = True
    reserve_full_isl: bool = True
    """Admit only when blocks for the whole present length are free (vLLM's default)."""
    watermark: float = 0.0
    """vLLM: share of the blocks kept free at admission."""
    max_prefill_tokens: Annotated[int, Meta(ge=1)] = 16_384
    """SGLang: nobody joins a prefill batch that has so many tokens."""
    new_token_ratio_start: Annotated[float, Meta(ge=0, le=1)] = 0.7
    """SGLang: share of the tokens that the running ones may still generate which is kept free at
    admission; this one after idling. It is 0.7 times `schedule_conservativeness`, at most 1."""
    new_token_ratio_min: Annotated[float, Meta(ge=0, le=1)] = 0.098
    """SGLang: what that share falls to; 0.14 times the start."""
    new_token_ratio_decay_steps: Annotated[int, Meta(ge=1)] = 600
    """SGLang: decode steps in which it falls from the start to the least, evenly."""
    max_new_tokens_clip: Annotated[int, Meta(ge=1)] = 4_096
    """SGLang: what a request may still generate counts as this much at most."""
    retract_decode_steps: Annotated[int, Meta(ge=0)] = 20
    """SGLang: tokens that each request is given to grow by in the share after a retraction."""


class Instance(Wire, frozen=True, kw_only=True):
    """One boot of a worker, as its heartbeat and its lease show it."""

    instance: str
    boot: str
    model: str
    engine: str
    state: Literal["ready", "draining", "dead"]
    limits: EngineLimits
    running: int = 0
    waiting: int = 0
    inbox_pending: int = 0
    kv_blocks_used: int = 0
    preemptions: int = 0
    sent_at_ms: float

    @property
    def in_flight(self) -> int:
        """Requests that the instance has yet to finish, its inbox included."""
        return self.running + self.waiting + self.inbox_pending


class DrainReply(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """Worker to operator: it stops taking requests from now on."""

    instance: str
    in_hand: int
    """Requests that it took and has not ended."""


Phase = Literal["waiting", "prefilling", "decoding", "preempted"]


class RequestState(Struct, frozen=True, array_like=True):
    """One request of the ledger. An array on the wire: there are many."""

    key: Key
    phase: Phase
    prompt_tokens: Count
    computed_tokens: Count
    """Tokens whose KV entries exist."""
    generated_tokens: Count
    max_tokens: Count
    p10: float
    p50: float
    p90: float
    priority: int = 0


class StepSample(Struct, frozen=True, array_like=True):
    """One step that the engine took: what was in it, and how long it was. An array on the wire."""

    tokens: int
    prefill_work: float
    """Σ chunk·(context + chunk/2) over the prefill chunks."""
    context_tokens: int
    """Σ KV entries that the decoding requests read."""
    sequences: int
    duration_ms: float


class Ended(Struct, frozen=True, array_like=True):
    """How one request left the ledger. An array on the wire. Durations are from the moment INBOX
    stored it; the worker measured them."""

    key: Key
    outcome: str
    """`stop` or `length`: it ran to its end. `cancelled`, `failed`, or `handed_back` to be run
    elsewhere; one that a reader does not know is as `failed`."""
    waited_ms: float = 0.0
    """In the inbox and in the engine's queue, as far as an update showed it there."""
    ttft_ms: float | None = None
    """None: no token came."""
    e2e_ms: float = 0.0
    """To its last token."""

    @property
    def answered(self) -> bool:
        """It ran to its end; the others' durations say nothing of the engine."""
        return self.outcome in ("stop", "length")


class Admission(Struct, frozen=True, array_like=True):
    """What SGLang's scheduler carries from one step to the next beside its queues."""

    new_token_ratio: Annotated[float, Meta(ge=0, le=1)]
    """See EngineLimits.new_token_ratio_start; now."""
    batch_full: bool = False
    """The head of the queue did not fit, and is not tried again until somebody leaves."""


STEPS_REPORTED_MAX = 256
ENDED_REPORTED_MAX = 256
LEDGER_MAX = 65_536


StateSource = Literal["exact", "reported", "ledger"]
"""The engine's own scheduler; the counts that it reports beside the worker's ledger; the ledger
alone, made from the streams."""


class StateUpdate(Struct, frozen=True, kw_only=True):
    """The whole ledger of one instance, in the order of the engine's own queues:
    running first, then waiting. MessagePack."""

    instance: str
    boot: str
    model: str = ""
    engine: str = ""
    sequence: int
    sent_at_ms: float
    limits: EngineLimits
    step_time: StepTime
    requests: Annotated[list[RequestState], Meta(max_length=LEDGER_MAX)]
    ended: Annotated[list[Ended], Meta(max_length=ENDED_REPORTED_MAX)] = []
    """Those of the last seconds, oldest first, told in several updates so that a lost one does no
    harm; they may never have been in `requests`."""
    finished: Annotated[list[str], Meta(max_length=ENDED_REPORTED_MAX)] = []
    """Of a worker older than `ended`: keys alone."""
    steps: Annotated[list[StepSample], Meta(max_length=STEPS_REPORTED_MAX)] = []
    """Steps since the last update, as far as the engine tells; the latest."""
    admission: Admission | None = None
    """Where the rules have such a thing and the engine tells; without it a predictor begins where
    an idle engine does."""
    source: StateSource = "ledger"
    """Where phases and progress come from."""


def prompt_text(request: Request) -> str:
    """The prompt as the tagger sees it; chat turns in one stable rendering."""
    if request.prompt is not None:
        return request.prompt
    return "\n".join(f"{turn.role}: {turn.content}" for turn in request.messages or ())
