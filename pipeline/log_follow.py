"""Warnings and errors out of the components' log files, as they are written."""

import asyncio
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

FOLLOW_EVERY_S = 0.3
READ_BYTES_MAX = 256 * 1024  # a component that floods its log is not copied line by line
_SERIOUS = re.compile(rb'\[(?:warning|error|critical) *\]|"level": ?"(?:warning|error|critical)"')
_COLOURS = re.compile(rb"\x1b\[[0-9;]*m")


async def follow_warnings(
    logs: Callable[[], Mapping[str, Path]], on_line: Callable[[str, str], None]
) -> NoReturn:
    """Call `on_line(component, line)` for each line of that level from now on, until cancelled."""
    offsets = {name: path.stat().st_size for name, path in logs().items() if path.exists()}
    while True:
        for name, path in logs().items():
            offsets[name] = _read_on(name, path, offsets.get(name, 0), on_line)
        await asyncio.sleep(FOLLOW_EVERY_S)


def _read_on(name: str, path: Path, offset: int, on_line: Callable[[str, str], None]) -> int:
    """Report what came after `offset`; returns where the last whole line ends."""
    try:
        with path.open("rb") as log:
            log.seek(offset)
            text = log.read(READ_BYTES_MAX)
    except FileNotFoundError:
        return offset
    end = text.rfind(b"\n") + 1
    if not end and len(text) == READ_BYTES_MAX:  # one endless line
        return offset + len(text)
    for line in text[:end].splitlines():
        plain = _COLOURS.sub(b"", line)
        if _SERIOUS.search(plain):
            on_line(name, plain.decode(errors="replace"))
    return offset + end
