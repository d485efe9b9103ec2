"""LMetric (arXiv 2603.15202): prefill work times batch size, with nothing to tune."""

from pipeline.messages import Load, Probe


def lmetric(load: Load, probe: Probe) -> float:
    """New prefill tokens x batch size, each with the newcomer in it:

        (prompt tokens not yet computed + the newcomer's prompt) x (R + W + 1)

    That is our reading of "new prefill tokens": all that have to be computed before the newcomer's
    first token. "Batch size" counts waiting requests W too, which will be in the batch with it.
    There is no prefix cache here that would make the newcomer's part differ between instances.
    """
    prefill_tokens = load.prefill_tokens_waiting + probe.prompt_tokens
    return float(prefill_tokens * (load.running + load.waiting + 1))
