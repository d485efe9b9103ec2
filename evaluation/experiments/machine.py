"""On what an experiment ran, for its report."""

import os
import platform
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


def machine() -> str:
    """Processors, their name where the system tells it, and Python's version."""
    name = platform.processor() or platform.machine()
    if CPU_INFO.is_file():
        for line in CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{os.cpu_count()} x {name}, Python {platform.python_version()}"
