"""One instance in virtual time: the simulated engine's scheduler and step truth, and its worker's
habits (how many requests it takes, when it publishes its state)."""

from collections import deque
from collections.abc import Callable

from evaluation.workloads.base import Arrival
from evaluation.world.agenda import Agenda
from evaluation.world.alone import alone_ms
from evaluation.world.job import Job
from evaluation.world.settings import ClusterSettings
from pipeline.messages import STEPS_REPORTED_MAX, RequestState, StateUpdate, StepSample
from predictor.rules import step_by_step
from predictor.scheduler import Scheduler, Sequence, StepPlan
from predictor.step_time import PROFILES
from workers.simulated_time import TrueStepTime
from workers.worker import in_hand_max

Ended = Callable[[Job], None]
Publish = Callable[[StateUpdate], None]
MovedOut = Callable[[Job, Sequence], None]
"""Is given a request that has left, as it was."""


class SimulatedInstance:
    """The truth of one instance. Requests enter by `arrive`; `ended` is told of each one's end."""

    def __init__(self, number: int, cluster: ClusterSettings, agenda: Agenda, ended: Ended) -> None:
        self.settings = settings = cluster.instances[number]
        self._cluster = cluster
        self._agenda = agenda
        self._ended = ended
        self.number = number
        self.name = f"i{number}"
        self.scheduler = step_by_step(settings.limits)
        self._step_time = TrueStepTime(
            settings.step_time,
            overhead_ms=settings.overhead_ms,
            noise=settings.noise,
            seed=cluster.seed * 100_003 + number,
        )
        self._in_hand_max = in_hand_max(settings.limits)
        self.inbox: deque[Job] = deque()
        self._jobs: dict[str, Job] = {}
        self._plan: StepPlan | None = None
        """The step under way."""
        self._plan_ends_at_ms = 0.0
        self._waking = False
        self._stalls_until_ms = 0.0
        self._to_move: dict[str, MovedOut] = {}
        self._move_stall_ms = 0.0
        self.steps = 0
        self.tokens_generated = 0
        self.blocks_peak = 0
        self.publish: Publish | None = None
        """Where states go, if somebody wants them."""
        self._samples: deque[StepSample] = deque(maxlen=STEPS_REPORTED_MAX)
        self._state_sequence = 0
        self._published_at_ms = -cluster.state_every_ms
        self._publishing = False
        self._finished: list[str] = []

    @property
    def preemptions(self) -> int:
        return self.scheduler.preemptions

    @property
    def blocks_free_share(self) -> float:
        return self.scheduler.blocks_free / self.settings.limits.kv_blocks

    @property
    def idle(self) -> bool:
        return not self._jobs

    def alone_ms(self, arrival: Arrival) -> float:
        """What it would take here if nobody else was there; without noise."""
        settings = self.settings
        return alone_ms(
            settings.step_time,
            settings.overhead_ms,
            settings.limits,
            arrival.prompt_tokens,
            arrival.response_tokens,
        )

    # ------------------------------------------------------------------ the worker

    def arrive(self, job: Job) -> None:
        """A request has come into the inbox."""
        if len(self._jobs) >= self._in_hand_max:
            self.inbox.append(job)
        else:
            self._take(job)

    def sequence_of(self, job: Job) -> Sequence:
        """The request as this engine's scheduler gets it, with its true length."""
        arrival = job.arrival
        room = self.scheduler.room(arrival.prompt_tokens)
        return Sequence(
            job.key,
            arrival.prompt_tokens,
            min(arrival.response_tokens, arrival.max_tokens or arrival.response_tokens),
            tokens_max=min(arrival.max_tokens or room, room),
        )

    def _take(self, job: Job) -> None:
        self.scheduler.add(self.sequence_of(job))
        self._enter(job)

    def _enter(self, job: Job) -> None:
        job.instance = self.number
        self._jobs[job.key] = job
        self._changed()
        self._wake()

    def _leave(self, job: Job) -> None:
        del self._jobs[job.key]
        self._finished.append(job.key)
        while self.inbox and len(self._jobs) < self._in_hand_max:
            self._take(self.inbox.popleft())
        self._changed()

    # ------------------------------------------------------------------ the engine

    def under_way(self) -> tuple[Scheduler, StepPlan | None, float]:
        """The scheduler, the step that it is in, and the time until that ends, in ms. To be
        copied, not touched."""
        left_ms = self._plan_ends_at_ms - self._agenda.now_ms if self._plan is not None else 0.0
        return self.scheduler, self._plan, left_ms

    def _wake(self) -> None:
        """Who sleeps begins a step, with all that have come by this instant."""
        if self._plan is None and not self._waking:
            self._waking = True
            self._agenda.after(0.0, self._begin_step)

    def _begin_step(self) -> None:
        self._waking = False
        if not len(self.scheduler):
            return
        self._plan = plan = self.scheduler.step()
        self.blocks_peak = max(self.blocks_peak, self.scheduler.blocks_used)
        duration_ms = self._step_time.next_ms(plan.load)
        begins_at_ms = max(self._agenda.now_ms, self._stalls_until_ms)
        self._plan_ends_at_ms = begins_at_ms + duration_ms
        self._agenda.at(self._plan_ends_at_ms, lambda: self._end_step(plan, duration_ms))

    def _end_step(self, plan: StepPlan, duration_ms: float) -> None:
        now_ms, load = self._agenda.now_ms, plan.load
        self.steps += 1
        if self.publish is not None:
            self._samples.append(
                StepSample(
                    load.tokens, load.prefill_work, load.context_tokens, load.sequences, duration_ms
                )
            )
        over: list[Job] = []
        grown = self.scheduler.complete(plan)
        self.tokens_generated += len(grown)
        for sequence, finished in grown:
            if sequence.generated == 1 or finished:
                job = self._jobs[sequence.key]
                if job.first_token_at_ms < 0:
                    job.first_token_at_ms = now_ms
                if finished:
                    job.finished_at_ms = now_ms
                    job.preemptions += sequence.preemptions
                    over.append(job)
        self._plan = None
        for job in over:
            self._leave(job)
            self._ended(job)
        if self._to_move:
            self._move_out()
        if not self._waking:
            self._begin_step()

    # ------------------------------------------------------------------ live migration

    def move_out(self, key: str, moved: MovedOut, stall_ms: float) -> None:
        """Hand a running request over at the end of the step under way, if it still decodes then;
        the engine stands still for `stall_ms`."""
        self._to_move[key] = moved
        self._move_stall_ms = stall_ms

    def _move_out(self) -> None:
        wanted, self._to_move = self._to_move, {}
        leaving = [s for s in self.scheduler.running if s.key in wanted and s.decoding]
        for sequence in leaving:
            job = self._jobs[sequence.key]
            self.scheduler.abort(sequence.key)
            job.preemptions += sequence.preemptions
            job.migrations += 1
            self._leave(job)
            self._stall(self._move_stall_ms)
            wanted[sequence.key](job, sequence)

    def move_in(self, job: Job, sequence: Sequence, stall_ms: float) -> None:
        """A request comes with its KV entries; without room for them it is computed anew."""
        scheduler = self.scheduler
        there = Sequence(
            sequence.key,
            sequence.prompt_tokens,
            sequence.target_tokens,
            generated=sequence.generated,
            tokens_max=sequence.tokens_max,
        )
        blocks = -(-sequence.computed // self.settings.limits.block_size)
        if (
            blocks <= scheduler.blocks_free
            and len(scheduler.running) < self.settings.limits.max_num_seqs
        ):
            there.computed = sequence.computed
            scheduler.restore(there)
        else:
            job.preemptions += 1
            scheduler.add(there)
        self._stall(stall_ms)
        self._enter(job)

    def _stall(self, stall_ms: float) -> None:
        begins_at_ms = max(self._agenda.now_ms, self._stalls_until_ms)
        self._stalls_until_ms = begins_at_ms + stall_ms

    # ------------------------------------------------------------------ its state, as published

    def _changed(self) -> None:
        if self.publish is not None and not self._publishing:
            self._publishing = True
            due_ms = self._published_at_ms + self._cluster.state_every_ms
            self._agenda.at(max(self._agenda.now_ms, due_ms), self._publish)

    def _publish(self) -> None:
        self._publishing = False
        if self.publish is None:
            return
        self.publish(self.state())
        if self._jobs:
            sequence = self._state_sequence
            self._agenda.after(
                self._cluster.state_every_ms + self._cluster.state_refresh_ms,
                lambda: self._refresh(sequence),
            )

    def _refresh(self, sequence: int) -> None:
        """Nothing has changed for long; `sequence` is that of the state from which it counts."""
        if sequence == self._state_sequence and not self._publishing:
            self._publish()

    def state(self) -> StateUpdate:
        """The whole ledger as it is; whoever gets it has to hand it to the predictor."""
        self._state_sequence += 1
        self._published_at_ms = self._agenda.now_ms
        update = StateUpdate(
            instance=self.name,
            boot="b",
            sequence=self._state_sequence,
            sent_at_ms=self._agenda.now_ms,
            limits=self.settings.limits,
            step_time=PROFILES[self.settings.profile],
            requests=self.states(),
            finished=self._finished,
            steps=list(self._samples),
            admission=self.scheduler.admission,
        )
        self._samples.clear()
        self._finished = []
        return update

    def states(self) -> list[RequestState]:
        """What the worker's ledger would say (workers/ledger.py), in the queues' order."""
        scheduler, jobs = self.scheduler, self._jobs
        states = []
        for sequence in scheduler.running:
            estimate = jobs[sequence.key].arrival.estimate
            states.append(
                RequestState(
                    sequence.key,
                    "decoding" if sequence.decoding else "prefilling",
                    sequence.prompt_tokens,
                    sequence.computed,
                    sequence.generated,
                    sequence.tokens_max,
                    estimate.p10,
                    estimate.p50,
                    estimate.p90,
                )
            )
        for sequence in scheduler.waiting:
            estimate = jobs[sequence.key].arrival.estimate
            states.append(
                RequestState(
                    sequence.key,
                    "preempted" if sequence.preemptions else "waiting",
                    sequence.prompt_tokens,
                    0,
                    sequence.generated,
                    sequence.tokens_max,
                    estimate.p10,
                    estimate.p50,
                    estimate.p90,
                )
            )
        return states
