"""Keeps fitted step times from one life of a worker to the next: a small JSON file for each
instance, model and engine.

What cannot be read, is of something else, or is no engine's step time is told once and left where
it is; the fit then starts from its profile. A disk that cannot be written costs the next start
some hundred steps of learning, and nothing else.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import msgspec
import structlog

from pipeline.messages import StepTime
from predictor.fit import OnlineFit, check_physical

log = structlog.get_logger()

VERSION = 1
STEPS_MIN = 100
"""A fit of fewer is little more than the profile that it started from."""
ERROR_MAX = 0.5
"""Of a stored fit's steps: one that was this wrong about its own engine is no better start."""
UNCERTAINTY = 0.2
"""How little a reloaded fit is believed, against 1 for a profile: the engine is the same, the
machine's clocks, neighbours and driver need not be."""
FILE_BYTES_MAX = 64 * 1024


class StoredFit(msgspec.Struct, frozen=True, kw_only=True):
    """A file's content. Other fields are ignored."""

    version: int
    instance: str
    model: str
    engine: str
    step_time: StepTime
    steps: int
    """That it was fitted to."""
    error: float
    """Median relative error of the latest of them."""
    saved_at_ms: float


@dataclass(frozen=True, slots=True)
class FitStore:
    """The file of one instance, model and engine. Blocking: a few hundred bytes."""

    folder: Path
    instance: str
    model: str
    engine: str

    @property
    def path(self) -> Path:
        """Readable, and different for different keys, whatever characters they have."""
        key = (self.instance, self.model, self.engine)
        readable = "-".join(re.sub(r"[^A-Za-z0-9_]+", "_", part)[:40] for part in key)
        digest = blake2b("\0".join(key).encode(errors="replace"), digest_size=4).hexdigest()
        return self.folder / f"{readable}-{digest}.json"

    def fit(self, start: StepTime, *, tokens_max: int) -> OnlineFit:
        """From what was stored; from `start` where there is nothing usable."""
        stored = self.load()
        if stored is None:
            return OnlineFit(start, tokens_max=tokens_max)
        return OnlineFit(stored.step_time, tokens_max=tokens_max, uncertainty=UNCERTAINTY)

    def load(self) -> StoredFit | None:
        """What was stored; None, and a warning unless there just is no file, if unusable."""
        try:
            with self.path.open("rb") as file:
                data = file.read(FILE_BYTES_MAX)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn("fit_not_read", error)
            return None
        try:
            stored = msgspec.json.decode(data, type=StoredFit)
            self._check(stored)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            self._warn("fit_refused", error)
            return None
        return stored

    def save(self, fit: OnlineFit, *, at_ms: float) -> bool:
        """Whole or not at all, also when the machine stops; False if it was not written.

        A fit that would be refused when read is not written over one that would not.
        """
        stored = StoredFit(
            version=VERSION,
            instance=self.instance,
            model=self.model,
            engine=self.engine,
            step_time=fit.coefficients,
            steps=fit.steps,
            error=fit.error,
            saved_at_ms=at_ms,
        )
        try:
            self._check(stored)
        except ValueError:
            return False
        try:
            with _replacing(self.path) as temporary:
                _write(temporary, msgspec.json.encode(stored))
        except OSError as error:
            self._warn("fit_not_saved", error)
            return False
        return True

    def _check(self, stored: StoredFit) -> None:
        """Raises ValueError."""
        if stored.version != VERSION:
            raise ValueError(f"version {stored.version}, not {VERSION}")
        for name in ("instance", "model", "engine"):
            if getattr(stored, name) != getattr(self, name):
                raise ValueError(f"of {name} {getattr(stored, name)!r:.80}")
        if stored.steps < STEPS_MIN:
            raise ValueError(f"of {stored.steps} steps only")
        if not 0 <= stored.error <= ERROR_MAX:
            raise ValueError(f"its error is {stored.error}")
        check_physical(stored.step_time)

    def _warn(self, event: str, error: Exception) -> None:
        log.warning(event, instance=self.instance, file=self.path.name, reason=str(error)[:200])


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A name in the same folder that takes the path's place at the end, or is gone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write(path: Path, data: bytes) -> None:
    """Down to the disk: a rename that outlives its content would leave an empty file."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
