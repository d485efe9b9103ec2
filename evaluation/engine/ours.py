"""Our side: the same case through the scheduler that predictions are made with."""

from evaluation.engine.steps import Case, Step
from pipeline.messages import EngineLimits
from predictor.rules import step_by_step
from predictor.scheduler import Sequence


def run(case: Case, limits: EngineLimits) -> list[Step]:
    """Every step until everybody has ended."""
    scheduler = step_by_step(limits)
    coming = list(reversed(case.arrivals))
    steps: list[Step] = []
    while coming or len(scheduler):
        while coming and (not len(scheduler) or coming[-1].at_step <= len(steps)):
            arrival = coming.pop()
            prompt_tokens, tokens = len(arrival.prompt), arrival.tokens
            scheduler.add(Sequence(arrival.key, prompt_tokens, tokens, tokens_max=tokens))
        plan = scheduler.step()
        chunks = [(sequence.key, chunk) for sequence, chunk in plan.chunks]
        steps.append(Step(chunks, list(plan.preempted), scheduler.blocks_free))
        scheduler.complete(plan)
    return steps
