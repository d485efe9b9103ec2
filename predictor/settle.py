"""From a ledger to a batch in lock-step, for rule sets whose running list is one mixed batch.

By the rules the running list is those that decode, no more than a step's token budget, and then
those that prefill. A ledger that was inferred from outside can show it otherwise; then the
steps are taken one by one, by the plain scheduler, until it has sorted itself out.
"""

from pipeline.messages import EngineLimits, StepTime
from predictor.lockstep import Lockstep
from predictor.queues import Queues, decoding_first
from predictor.rules import by_events, restored
from predictor.step_time import step_ms


def settled(
    limits: EngineLimits,
    step_time: StepTime,
    queues: Queues,
    *,
    watched: int = -1,
) -> Lockstep:
    """The engine in this state, or a few steps later. `watched` is the newcomer's row."""
    engine_type = by_events(limits)
    if engine_type.in_order(limits, queues):
        engine = engine_type(limits, step_time, queues)
        engine.watched = watched
        return engine

    scheduler = restored(limits, queues)
    rows = {key: row for row, key in enumerate(queues.keys)}
    now, steps, produced, free_min = 0.0, 0, 0, limits.kv_blocks
    first_ms: float | None = None
    opened = False
    finished: list[int] = []
    finish_ms: list[float] = []
    now_queues = queues.copy()
    while True:
        if engine_type.in_order(limits, now_queues):
            engine = engine_type(limits, step_time, now_queues)
            # V0: whose last token is all that a prefill lacks looks as if it decoded, and has
            # blocks for it already.
            if engine.free == scheduler.blocks_free:
                break
        plan = scheduler.step()
        now += step_ms(step_time, plan.load)
        free_min = min(free_min, scheduler.blocks_free)
        opened |= plan.open
        grown = scheduler.complete(plan)
        steps += 1
        produced += len(grown)
        for sequence, last in grown:
            row = rows[sequence.key]
            if row == watched and first_ms is None:
                first_ms = now
            if last:
                finished.append(row)
                finish_ms.append(now)
        now_queues.running = [rows[sequence.key] for sequence in scheduler.running]
        now_queues.waiting = [rows[sequence.key] for sequence in scheduler.waiting]
        for sequence in (*scheduler.running, *scheduler.waiting):
            row = rows[sequence.key]
            now_queues.computed[row] = sequence.computed
            now_queues.generated[row] = sequence.generated
        now_queues.decoding = decoding_first(now_queues)

    engine.now, engine.steps, engine.produced = now, steps, produced
    engine.preemptions, engine.free_min = scheduler.preemptions, free_min
    engine.finished, engine.finish_ms = finished, finish_ms
    engine.watched, engine.first_ms, engine.opened = watched, first_ms, opened
    engine.done = watched in finished
    return engine
