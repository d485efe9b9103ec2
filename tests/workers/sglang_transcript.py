"""What a real SGLang 0.5.23 was asked and said; tests/engines/record_sglang.py writes it down."""

from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).parent / "sglang_transcripts"


class Exchange(msgspec.Struct, frozen=True):
    name: str
    path: str
    body: dict[str, Any] | None
    status: int
    answer: str


class Transcript(msgspec.Struct, frozen=True):
    incremental: bool
    """Its streams carry what was added."""
    exchanges: list[Exchange]

    def named(self, name: str) -> list[Exchange]:
        found = [one for one in self.exchanges if one.name == name]
        assert found, name
        return found


def load(name: str) -> Transcript:
    return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=Transcript)
