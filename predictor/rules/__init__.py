"""The schedulers that an instance may have, by the name of their rules.

Each is there twice: step by step, as plain as the engine's own, and by events, fast. A test holds
the two equal.
"""

from pipeline.errors import AstrolabeError
from pipeline.messages import EngineLimits
from predictor.lockstep import Lockstep
from predictor.queues import Queues
from predictor.rules.sglang import SglangEvents
from predictor.rules.sglang_steps import SglangScheduler
from predictor.rules.vllm import VllmEvents
from predictor.rules.vllm_v0 import V0Events
from predictor.rules.vllm_v0_steps import V0Scheduler
from predictor.scheduler import Scheduler, Sequence

_STEP_BY_STEP: dict[str, type[Scheduler]] = {
    "vllm": Scheduler,
    "vllm-v0": V0Scheduler,
    "sglang": SglangScheduler,
}
_BY_EVENTS: dict[str, type[Lockstep]] = {
    "vllm": VllmEvents,
    "vllm-v0": V0Events,
    "sglang": SglangEvents,
}


class UnknownRulesError(AstrolabeError):
    """There is no simulation of this scheduler: better none than one of another."""


def _check(limits: EngineLimits) -> None:
    if limits.rules == "vllm-v0" and not limits.chunked_prefill:
        raise UnknownRulesError("vLLM V0 without chunked prefill is another scheduler")
    if limits.rules == "sglang" and limits.chunked_prefill:
        chunk, page = limits.max_num_batched_tokens, limits.block_size
        if chunk < 1 or chunk % page:
            raise UnknownRulesError(
                f"max_num_batched_tokens {chunk}: SGLang's chunk is a multiple of its page of "
                f"{page} tokens"
            )


def step_by_step(limits: EngineLimits) -> Scheduler:
    """An empty engine with these limits."""
    _check(limits)
    try:
        return _STEP_BY_STEP[limits.rules](limits)
    except KeyError:
        raise UnknownRulesError(f"no scheduler with the rules of {limits.rules}") from None


def by_events(limits: EngineLimits) -> type[Lockstep]:
    """The fast kind of an engine with these limits."""
    _check(limits)
    try:
        return _BY_EVENTS[limits.rules]
    except KeyError:
        raise UnknownRulesError(f"no fast simulation of the rules of {limits.rules}") from None


def restored(limits: EngineLimits, queues: Queues) -> Scheduler:
    """The engine's queues as the ledger shows them, to be run step by step."""
    scheduler = step_by_step(limits)
    for rows, enter in ((queues.running, scheduler.restore), (queues.waiting, scheduler.add)):
        for row in rows:
            enter(
                Sequence(
                    queues.keys[row],
                    queues.prompts[row],
                    queues.targets[row],
                    computed=queues.computed[row],
                    generated=queues.generated[row],
                    priority=queues.priorities[row],
                    tokens_max=queues.tokens_max[row],
                )
            )
    if queues.admission is not None:
        scheduler.resume(queues.admission)
    return scheduler
