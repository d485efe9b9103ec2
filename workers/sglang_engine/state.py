"""What the worker knows of SGLang's load: from its scheduler's own reports, or, where it gives
none, from the server's `/v1/loads`."""

from collections import deque
from collections.abc import Callable
from time import monotonic

from pipeline.messages import STEPS_REPORTED_MAX, EngineLimits, StepSample
from workers.engine import EngineStats
from workers.openai_engine.load import ServerLoad
from workers.report import Report
from workers.reported import KeyOf, stats_of
from workers.token_times import TokenTimes


class SGLangState:
    """`key_of` gives the worker's key of an id that the server knows. `clock` in seconds."""

    def __init__(self, key_of: KeyOf, clock: Callable[[], float] = monotonic) -> None:
        self._key_of = key_of
        self._clock = clock
        self._report: Report | None = None
        self._load = ServerLoad()
        self._samples: deque[StepSample] = deque(maxlen=STEPS_REPORTED_MAX)
        self.times = TokenTimes(clock)
        """Of the streams; steps are learnt from them where the scheduler tells of none."""
        self._moved_at = clock()

    @property
    def exact(self) -> bool:
        """The scheduler reports."""
        return self._report is not None

    def reported(self, report: Report) -> None:
        """The scheduler's own word."""
        if report.step is not None:
            self._samples.append(report.step)
        self._report = report
        self.moved()

    def polled(self, load: ServerLoad) -> None:
        """The server's counts. They may be the same as before: it renews them now and then."""
        if load != self._load:
            self.moved()
        self._load = load

    def moved(self) -> None:
        """There is a sign that the scheduler works."""
        self._moved_at = self._clock()

    def still_s(self) -> float:
        """How long there was none."""
        return self._clock() - self._moved_at

    def take_steps(self) -> list[StepSample]:
        if not self.exact:
            return self.times.take()
        taken = list(self._samples)
        self._samples.clear()
        return taken

    def stats(self, limits: EngineLimits, unfinished: int) -> EngineStats:
        """`unfinished` is how many requests the worker has in the engine."""
        if self._report is not None:
            return stats_of(self._report, limits.kv_blocks, unfinished, self._key_of)
        load = self._load
        if not load.tells:
            running = min(unfinished, limits.max_num_seqs)
            return EngineStats(running, unfinished - running, 0, 0, source="ledger")
        return EngineStats(
            running=load.running or 0,
            waiting=load.waiting or 0,
            kv_blocks_used=round((load.kv_share or 0.0) * limits.kv_blocks),
            preemptions=load.preemptions or 0,
            source="reported",
        )
