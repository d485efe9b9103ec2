"""`astrolabe` for a stack whose instances differ: some engines run slower than the others.

    python -m evaluation.rivals.component i0=3 worker --instance i0 …

The first argument says whose steps take how many times as long; everything else is the ordinary
command. It stands in `StackSettings.command`, which every component of a local stack begins with.
"""

import os
import sys
from collections.abc import Sequence

from pipeline.errors import UsageError


def with_slowness(slow: str, arguments: Sequence[str]) -> list[str]:
    """The component's own arguments, with the engine's time scale where it is the slow instance.

    `slow` is NAME=TIME_SCALE. Raises UsageError.
    """
    name, found, scale = slow.partition("=")
    if not found or not name:
        raise UsageError(f"{slow!r}: write INSTANCE=TIME_SCALE")
    own = list(arguments)
    if own[:1] == ["worker"] and own[own.index("--instance") + 1] == name:
        own += ["--engine-arg", f"time_scale={scale}"]
    return own


if __name__ == "__main__":
    own = with_slowness(sys.argv[1], sys.argv[2:])
    os.execv(sys.executable, [sys.executable, "-P", "-m", "pipeline.cli", *own])  # noqa: S606
