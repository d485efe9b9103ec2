"""How loaded an instance is, counted from what its predictor knows: for the rules that simulate
nothing.

The view includes the requests that are on their way, so this load does too: it is as aware of
dispatches in flight as the predictions are, and the rules differ in what they make of it only.
"""

from pipeline.messages import EngineLimits, Load, Prediction, Probe
from predictor.queues import Queues, newcomer, resolve
from predictor.view import View


def load_of(view: View, *, without: str | None = None) -> Load:
    """The load of the instance, the request called `without` left out.

    Those on their way count as waiting, and so do preempted ones: their answer so far is computed
    again with the prompt, and counts as prompt here. Requests that can never fit are no load.
    """
    limits = view.limits
    queues = resolve(limits, view.requests, without=without)
    rows = range(len(queues.keys))
    held = sum(_blocks(limits, _held_tokens(limits, queues, row)) for row in queues.running)
    return Load(
        running=len(queues.running),
        waiting=len(queues.waiting),
        # An inferred ledger may hold more than there is.
        kv_blocks_free=max(0, limits.kv_blocks - held),
        waiting_prompt_blocks=sum(
            _blocks(limits, queues.prompts[row] + queues.generated[row]) for row in queues.waiting
        ),
        outstanding_tokens=sum(
            max(0, queues.prompts[row] + queues.targets[row] - queues.computed[row]) for row in rows
        ),
        prefill_tokens_waiting=sum(_prefill_tokens(queues, row) for row in rows),
    )


def load_answer(view: View, probe: Probe) -> Prediction:
    """The answer to a probe of kind `load`. Raises PromptTooLong, as a prediction does."""
    newcomer(view.limits, probe)
    return Prediction(
        instance=view.instance,
        boot=view.boot,
        ttft_ms=0.0,
        e2e_ms=0.0,
        cost=0.0,
        state_age_ms=view.age_ms,
        requests=len(view.requests),
        load=load_of(view, without=probe.key),
    )


def _blocks(limits: EngineLimits, tokens: int) -> int:
    return -(-tokens // limits.block_size)


def _held_tokens(limits: EngineLimits, queues: Queues, row: int) -> int:
    """Tokens that a running request has blocks for."""
    if limits.rules == "vllm-v0" and _prefill_tokens(queues, row):
        return queues.prompts[row] + queues.generated[row]  # it gets all of a prefill's at once
    return queues.computed[row]


def _prefill_tokens(queues: Queues, row: int) -> int:
    """Tokens to compute before the next one is generated; none where that takes one step only."""
    left = queues.prompts[row] + queues.generated[row] - queues.computed[row]
    return 0 if queues.generated[row] and left == 1 else left
