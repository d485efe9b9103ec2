"""CPU time of processes, as the kernel counts it."""

import os
from pathlib import Path

_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


def cpu_ms(pid: int) -> float:
    """User and system time of a process so far, in ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_MS


def machine() -> str:
    """The processor and how many of it."""
    info = Path("/proc/cpuinfo").read_text()
    names = [line.partition(":")[2].strip() for line in info.splitlines() if "model name" in line]
    return f"{len(names)} x {names[0]}" if names else f"{os.cpu_count()} processors"
