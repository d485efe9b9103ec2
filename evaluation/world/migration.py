"""Llumnix's live migration, for comparison: requests move while they run, with their KV entries.

Now and then the instance with the least freeness hands a running request to the one with the most
(freeness as in pipeline/policies/llumnix.py, in free blocks a running request). The entries go over
a link of given bandwidth, during which the request stands still, and both engines stand still for
`stall_ms` a move. The requests with the shortest contexts move first, since they are the quickest.
"""

from collections.abc import Callable, Sequence
from functools import partial

from evaluation.world.agenda import Agenda
from evaluation.world.instance import SimulatedInstance
from evaluation.world.job import Job
from evaluation.world.settings import MigrationSettings
from predictor.scheduler import Sequence as Running

Moved = Callable[[Job, int, int], None]
"""Told of every move: of what, from which instance to which."""


class Migration:
    """Moves requests between the instances, as long as it is started."""

    def __init__(
        self,
        settings: MigrationSettings,
        agenda: Agenda,
        instances: Sequence[SimulatedInstance],
        moved: Moved,
    ) -> None:
        self._settings = settings
        self._agenda = agenda
        self._instances = instances
        self._moved = moved

    def start(self) -> None:
        self._agenda.after(self._settings.every_ms, self._round)

    def _round(self) -> None:
        self._agenda.after(self._settings.every_ms, self._round)
        ranked = sorted(self._instances, key=freeness)
        while len(ranked) >= 2:
            poor, rich = ranked.pop(0), ranked.pop()
            if freeness(poor) >= self._settings.out_below:
                return
            if freeness(rich) <= self._settings.in_above:
                return
            self._move(poor, rich)

    def _move(self, poor: SimulatedInstance, rich: SimulatedInstance) -> None:
        decoding = [s for s in poor.scheduler.running if s.decoding]
        decoding.sort(key=lambda sequence: sequence.computed)
        blocks_left = rich.scheduler.blocks_free // 2
        for sequence in decoding[: self._settings.moves_max]:
            blocks_left -= sequence.blocks
            if blocks_left < 0:
                return
            poor.move_out(sequence.key, partial(self._send, poor, rich), self._settings.stall_ms)

    def _send(
        self, poor: SimulatedInstance, rich: SimulatedInstance, job: Job, sequence: Running
    ) -> None:
        self._moved(job, poor.number, rich.number)
        self._agenda.after(
            self._settings.transfer_ms(sequence.computed),
            lambda: rich.move_in(job, sequence, self._settings.stall_ms),
        )


def freeness(instance: SimulatedInstance) -> float:
    """(free blocks - blocks that the waiting prompts need) / running requests."""
    scheduler = instance.scheduler
    size = instance.settings.limits.block_size
    waiting = sum(-(-(s.prompt_tokens + s.generated) // size) for s in scheduler.waiting)
    waiting += sum(-(-job.arrival.prompt_tokens // size) for job in instance.inbox)
    return (scheduler.blocks_free - waiting) / max(1, len(scheduler.running))
