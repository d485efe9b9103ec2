"""Questions, models and ends for tests of the tagger."""

import threading
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pipeline.bus import Message
from pipeline.estimates import Question
from pipeline.messages import ChatMessage, Request
from pipeline.subjects import Header
from tagger.model import Reading


def question(prompt: str, *, model: str = "default", **request: object) -> Question:
    return Question(Request(id="r", prompt=prompt, **request), prompt, model)  # type: ignore[arg-type]


class FakeModel:
    """As LengthModel: says of each prompt how long it is, takes its time, and counts."""

    name = "fake"

    def __init__(self, takes_s: float = 0.0) -> None:
        self.takes_s = takes_s
        self.batches: list[int] = []
        self._lock = threading.Lock()

    @property
    def computed(self) -> int:
        return sum(self.batches)

    def read(self, prompt: str) -> Reading:
        return Reading([len(prompt)], [], len(prompt) + 7)

    def read_chat(self, messages: Sequence[ChatMessage]) -> Reading:
        return self.read(messages[-1].content)

    def estimate(self, readings: Sequence[Reading]) -> npt.NDArray[np.float64]:
        time.sleep(self.takes_s)
        with self._lock:
            self.batches.append(len(readings))
        return np.array([[r.ids[0] + 1, r.ids[0] + 2, r.ids[0] + 3] for r in readings], float)


class BrokenModel(FakeModel):
    def estimate(self, readings: Sequence[Reading]) -> npt.NDArray[np.float64]:
        raise RuntimeError("broken")


def ended(
    tokens: int, estimate: float | None, *, model: str = "m", source: str = "fake"
) -> Message:
    """What `finished.…` brings of an answer that ended by itself."""
    headers = {
        Header.STATUS: "done",
        Header.MODEL: model,
        Header.COMPLETION_TOKENS: str(tokens),
    }
    if estimate is not None:
        headers |= {Header.ESTIMATE: f"{estimate:g}", Header.ESTIMATE_SOURCE: source}
    return Message("astrolabe.finished.c.r", b"", headers)
