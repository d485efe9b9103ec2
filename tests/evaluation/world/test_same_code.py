"""What runs in the simulated world is what runs live: engine, ledger and policy, one by one."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import aclosing

import msgspec
import pytest

from evaluation.world.agenda import Agenda
from evaluation.world.cluster import Cluster
from evaluation.world.instance import SimulatedInstance
from evaluation.world.job import Job, job_of
from evaluation.world.settings import ClusterSettings
from pipeline.fleet import Fleet
from pipeline.messages import (
    Decision,
    DispatchedRequest,
    Instance,
    Phase,
    Prediction,
    Request,
    StateUpdate,
    StepSample,
)
from pipeline.policies import Target, make_policy
from predictor.scheduler import Scheduler
from tests.evaluation.world.arrivals import arrival, arrivals, small
from workers.engine import EngineRequest, EngineStats, Progress
from workers.ledger import Ledger
from workers.simulated import SimulatedEngine
from workers.simulated_settings import SimulatedSettings

REQUESTS = [(30, 25), (200, 9), (700, 40), (5, 60), (120, 1), (90, 33)]


def alone(settings: ClusterSettings) -> tuple[Agenda, SimulatedInstance, list[StateUpdate]]:
    """One instance, and what it publishes."""
    agenda, updates = Agenda(), list[StateUpdate]()
    there = SimulatedInstance(0, settings, agenda, list[Job]().append)
    there.publish = updates.append
    return agenda, there, updates


async def test_virtual_time_is_real_time_step_by_step() -> None:
    """The same requests, noise and seed: the same steps, with the same loads."""
    agenda, virtual, updates = alone(ClusterSettings(instances=(small(),)))
    for number, (prompt, response) in enumerate(REQUESTS):
        virtual.arrive(job_of(number, arrival(0, prompt, response)))
    while agenda.step():
        pass
    assert virtual.preemptions > 0
    engine = SimulatedEngine(
        SimulatedSettings(
            kv_blocks=60, max_num_seqs=8, max_model_len=900, overhead_ms=2.0, time_scale=0.001
        )
    )
    await engine.start()
    try:
        real = await run_all(engine)
    finally:
        await engine.close()
    steps = [sample for update in updates for sample in update.steps]
    assert len(steps) == len(real) > 50
    for mine, theirs in zip(steps, real, strict=True):
        assert msgspec.structs.astuple(mine)[:4] == msgspec.structs.astuple(theirs)[:4]
        assert mine.duration_ms == pytest.approx(1000 * theirs.duration_ms)


async def run_all(engine: SimulatedEngine) -> list[StepSample]:
    async def run(number: int, prompt: int, response: int) -> None:
        request = Request(id=f"r{number}", prompt="x", metadata={"response_tokens": f"{response}"})
        asked = EngineRequest(f"c.{number}", request, "x", prompt)
        async with aclosing(engine.generate(asked)) as deltas:
            async for _ in deltas:
                pass

    await asyncio.gather(*(run(n, *lengths) for n, lengths in enumerate(REQUESTS)))
    return engine.take_steps()


def test_a_published_state_is_the_worker_s_ledger() -> None:
    agenda, there, _ = alone(ClusterSettings(instances=(small(),)))
    ledger = Ledger(there.settings.limits.max_model_len)
    for number, asked in enumerate(arrivals(9, rate=1000, longest=200)):
        job = job_of(number, asked)
        there.arrive(job)
        ledger.add(
            DispatchedRequest(
                id=str(number),
                client="c",
                model="default",
                request=msgspec.Raw(b"{}"),
                prompt_tokens=asked.prompt_tokens,
                max_tokens=None,
                estimate=asked.estimate,
                deadline_at_ms=0.0,
                instance="i0",
                boot="b",
                decision=Decision(policy="none", reason="none"),
            )
        )
    seen = set[Phase]()
    for _ in range(60):
        agenda.step()
        if there.under_way()[1] is None:
            continue
        states = there.states()
        alive = {state.key for state in states}
        for key in set(ledger.keys()) - alive:
            ledger.remove(key)
        assert states == ledger.states(report(there.scheduler))
        seen |= {state.phase for state in states}
    assert seen == {"waiting", "prefilling", "decoding", "preempted"}


def report(scheduler: Scheduler) -> EngineStats:
    """As the simulated engine makes it."""
    progress = {
        s.key: Progress("decoding" if s.decoding else "prefilling", s.computed, s.generated)
        for s in scheduler.running
    }
    progress |= {
        s.key: Progress("preempted" if s.preemptions else "waiting", s.computed, s.generated)
        for s in scheduler.waiting
    }
    return EngineStats(
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        kv_blocks_used=scheduler.blocks_used,
        preemptions=scheduler.preemptions,
        steps=0,
        progress=progress,
    )


@pytest.mark.parametrize(
    "policy", ["sifted", "power_of_two", "power_of_two:3", "fan_out", "llumnix"]
)
def test_shown_the_same_the_live_policy_chooses_the_same(policy: str) -> None:
    """The live dispatcher's fleet and policy get what a simulated dispatcher saw."""
    settings = ClusterSettings(instances=(small(),) * 4, policy=policy, seed=5)
    cluster = Cluster(settings, arrivals(40, rate=8))
    simulated = cluster.dispatchers[0]
    live = make_policy(policy, random.Random(f"dispatcher:{settings.seed}:0"))
    decisions = 0
    shown: list[tuple[Sequence[Target], dict[str, Prediction]]] = []

    class Recorder:
        """The simulated dispatcher's policy, and what it was shown and said."""

        name, needs = simulated.policy.name, simulated.policy.needs

        def __init__(self) -> None:
            self.real = simulated.policy

        def shortlist(self, targets: Sequence[Target]) -> Sequence[Target]:
            theirs = self.real.shortlist(targets)
            for mine, yours in zip(live.shortlist(fleet_of(targets)), theirs, strict=True):
                assert (mine.instance, mine.in_flight) == (yours.instance, yours.in_flight)
                assert mine.committed == pytest.approx(yours.committed)
            return theirs

        def choose(self, shortlist, predictions, probe):  # type: ignore[no-untyped-def]
            nonlocal decisions
            decisions += 1
            theirs = self.real.choose(shortlist, predictions, probe)
            assert live.choose(shortlist, predictions, probe) == theirs
            shown.append((shortlist, predictions))
            return theirs

    simulated.policy = Recorder()
    cluster.run()
    assert decisions == 40
    assert all(len(predictions) == len(shortlist) for shortlist, predictions in shown)


def fleet_of(targets: Sequence[Target]) -> list[Target]:
    """The targets as the live dispatcher's fleet tells them, from heartbeats and dispatches."""
    fleet = Fleet(clock=lambda: 0.0)
    limits = small().limits
    for target in targets:
        fleet.heard(
            Instance(
                instance=target.instance,
                boot=target.boot,
                model="m",
                engine="simulated",
                state="ready",
                limits=limits,
                sent_at_ms=0.0,
            )
        )
        tokens = target.committed * limits.kv_blocks * limits.block_size
        for number in range(target.in_flight):
            fleet.arrived(target.instance, f"c.{number}", tokens / target.in_flight)
    return fleet.targets("default")
