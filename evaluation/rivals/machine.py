"""What the kernel counts: which processor this is, how busy it was, and who used it."""

import os
from collections.abc import Iterable
from pathlib import Path

_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
_IDLE, _IO_WAIT = 3, 4


def processor() -> str:
    """The processor's name and how many of it."""
    info = Path("/proc/cpuinfo").read_text()
    names = [line.partition(":")[2].strip() for line in info.splitlines() if "model name" in line]
    return f"{len(names)} x {names[0]}" if names else f"{os.cpu_count()} processors"


class IdleShare:
    """Share of all processors' time in which they had nothing to do, from its making on."""

    def __init__(self) -> None:
        self._idle, self._all = _ticks()

    def so_far(self) -> float:
        """From 0 to 1; 1 where no time has passed."""
        idle, all_ = _ticks()
        passed = all_ - self._all
        return (idle - self._idle) / passed if passed else 1.0


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
