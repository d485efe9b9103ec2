"""What a worker needs of an engine. One module beside this one implements it per engine.

An adapter normalises: token counts are the engine's own, `max_tokens` beyond the model's room is
clipped and ends in `length`, a prompt without room raises PromptTooLong, a full engine queue
raises Overloaded, an engine that is down takes nothing and raises EngineDown, and everything else
that the engine itself breaks raises EngineFailed.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pipeline.errors import EngineFailed
from pipeline.messages import (
    Admission,
    EngineLimits,
    FinishReason,
    Phase,
    Request,
    StateSource,
    StepSample,
    StepTime,
)


class EngineDown(EngineFailed):
    """The engine was down before it took the request: nothing of it was tried."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One request as the engine takes it. `key` is unique among those in the engine."""

    key: str
    request: Request
    prompt: str
    prompt_tokens: int
    """The tagger's count; an engine with a tokenizer of its own counts again."""
    priority: int = 0
    """Lower is sooner."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What the engine added to one answer. The last one carries the finish reason."""

    text: str
    tokens: int
    finish_reason: FinishReason | None = None
    prompt_tokens: int = 0
    """The engine's own count; set on the last delta."""
    preemptions: int = 0
    """How often this request was preempted; set on the last delta."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Exact state of one request inside the engine's scheduler."""

    phase: Phase
    computed_tokens: int
    generated_tokens: int
    prompt_tokens: int | None = None
    """The engine's own count, where it tells; else the tagger's stands."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's own view of itself, as fresh as it can give it."""

    running: int
    waiting: int
    kv_blocks_used: int
    preemptions: int
    """Since the start."""
    steps: int = 0
    progress: Mapping[str, Progress] = field(default_factory=dict)
    """By key, in the order of the engine's queues (running, then waiting), where the engine can
    tell; empty where it cannot, and the ledger then infers it from the stream."""
    source: StateSource = "exact"
    """Where this comes from."""
    admission: Admission | None = None
    """What its scheduler carries from step to step, where its rules have that and it can tell."""


@dataclass(frozen=True, slots=True)
class EngineReady:
    """What `start` learned from the engine."""

    model: str
    limits: EngineLimits
    step_time: StepTime
    """First guess of the step's duration; the predictor corrects it from what it sees."""


class Engine(Protocol):
    """An LLM engine behind a worker. All methods run on the worker's event loop."""

    name: str

    async def start(self) -> EngineReady:
        """Load, warm up, and read the limits. Returns when requests will be served."""
        ...

    def generate(self, request: EngineRequest) -> AsyncGenerator[Delta, None]:
        """Stream the answer. Closing the iterator aborts the request.

        Raises PromptTooLong, Overloaded, EngineDown, EngineFailed (all RequestErrors).
        """
        ...

    async def abort(self, key: str) -> None:
        """End a request and free its blocks; its stream ends. Unknown keys are ignored."""
        ...

    def stats(self) -> EngineStats: ...

    def take_steps(self) -> list[StepSample]:
        """Steps since the last call, at most the latest STEPS_REPORTED_MAX; empty where the engine
        cannot tell."""
        ...

    async def wait_failed(self) -> str:
        """Returns the reason when the engine broke for good; until then it waits."""
        ...

    async def close(self) -> None:
        """Stop the engine; nothing of it is left running."""
        ...
