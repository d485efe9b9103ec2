"""What the kernel counts: which processor this is, how busy it was, and who used it."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
_IDLE, _IO_WAIT = 3, 4


def processor() -> str:
    """The processor's name and how many of it."""
    info = Path("/proc/cpuinfo").read_text()
    names = [line.partition(":")[2].strip() for line in info.splitlines() if "model name" in line]
    return f"{len(names)} x {names[0]}" if names else f"{os.cpu_count()} processors"


@dataclass(frozen=True, slots=True)
class Used:
    """What was used since a meter was made."""

    dispatch_cpu_ms: float
    engine_cpu_ms: float
    own_share: float
    """Of all processors' time, by dispatchers, engines and this process (the clients), 0 to 1."""
    idle_share: float
    """Of all processors' time, by nobody, 0 to 1. The rest was used by who else was there."""


class Meter:
    """Counts from its making on. The sessions that `dispatchers` and `engines` lead are counted
    with all their processes."""

    def __init__(self, dispatchers: Iterable[int], engines: Iterable[int]) -> None:
        self._dispatchers, self._engines = list(dispatchers), list(engines)
        self._before = self._read()

    def so_far(self) -> Used:
        dispatch_ms, engine_ms, client_ms, idle_ms, all_ms = (
            now - before for now, before in zip(self._read(), self._before, strict=True)
        )
        passed_ms = max(all_ms, _TICK_MS)
        return Used(
            dispatch_ms,
            engine_ms,
            own_share=(dispatch_ms + engine_ms + client_ms) / passed_ms,
            idle_share=idle_ms / passed_ms,
        )

    def _read(self) -> tuple[float, float, float, float, float]:
        idle, all_ = _ticks()
        return (
            cpu_ms(self._dispatchers),
            cpu_ms(self._engines),
            time.process_time() * 1000,
            idle * _TICK_MS,
            all_ * _TICK_MS,
        )


def cpu_ms(leaders: Iterable[int]) -> float:
    """User and system time so far, in ms, of all processes in the sessions that these lead.

    What a process has used that has ended is not in it any more.
    """
    sessions = set(leaders)
    used = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
        if int(fields[3]) in sessions:
            used += int(fields[11]) + int(fields[12])
    return used * _TICK_MS


def _ticks() -> tuple[int, int]:
    first = Path("/proc/stat").read_text().splitlines()[0]
    ticks = [int(part) for part in first.split()[1:9]]  # guests are counted in user time already
    return ticks[_IDLE] + ticks[_IO_WAIT], sum(ticks)
