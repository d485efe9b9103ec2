"""Real prompts with what the shipped length model says of them, beside their true lengths.

The model takes milliseconds a prompt, so its answers are kept: in a folder of at most FILES_MAX
small files, named by what was asked of which model, so that another model or another file of
prompts is never answered from it.
"""

import hashlib
import os
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import structlog

from evaluation.workloads.lengths import EstimateTable, Floats, LengthTable
from evaluation.workloads.tables import opened
from pipeline.errors import UsageError
from tagger.dataset import Row, read_rows

log = structlog.get_logger()

CACHE_VARIABLE = "ASTROLABE_CACHE"
FILES_MAX = 16


def read_tagged(path: Path) -> LengthTable:
    """All prompts of a JSONL file (`prompt`, `prompt_tokens`, `response_tokens`) with the shipped
    model's estimates, each message by itself, as the tagger sees it. A file that the model was
    trained on would flatter it. Raises UsageError, also where onnxruntime is missing.
    """
    rows = [row for row in read_rows(path) if row.response_tokens > 0]
    if any(not row.prompt_tokens for row in rows):
        raise UsageError(f"{path}: every row needs prompt_tokens, at least 1")
    name, quantiles = _estimated(path, rows)
    return LengthTable(
        name=path.name,
        prompt_tokens=np.array([row.prompt_tokens for row in rows], dtype=np.int64),
        response_tokens=np.array([row.response_tokens for row in rows], dtype=np.int64),
        estimates=EstimateTable(quantiles, source=name),
    )


def cache_folder() -> Path:
    """ASTROLABE_CACHE, else `astrolabe` in the user's cache folder."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "astrolabe"


def _estimated(path: Path, rows: list[Row]) -> tuple[str, Floats]:
    """The model's name, and its quantiles for each row, [n, 3]: kept, or made and kept."""
    from tagger.model import MODEL_FILE, PACKAGED, TOKENIZER_FILE, LengthModel, file_hash

    parts = [file_hash(PACKAGED / name) for name in (MODEL_FILE, TOKENIZER_FILE)]
    with opened(path) as file:
        parts.append(hashlib.sha256(file.read()).hexdigest())
    key = hashlib.sha256(" ".join(parts).encode()).hexdigest()[:32]
    kept = cache_folder() / f"estimates-{key}.npz"
    found = _load(kept, len(rows))
    if found is None:
        model = LengthModel.load()
        estimates = [model.estimate_one(row.prompt) for row in rows]
        found = model.name, np.array(estimates, dtype=np.float64)
        _save(kept, *found)
    return found


def _load(path: Path, rows: int) -> tuple[str, Floats] | None:
    """None where there is no such file, or it is damaged: it can be made again."""
    try:
        # Its own opening would stay open where the file is damaged.
        with path.open("rb") as file, np.load(file) as arrays:
            name, quantiles = str(arrays["name"]), arrays["quantiles"].astype(np.float64)
    except FileNotFoundError:
        return None
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        log.warning("estimates_made_again", file=str(path), reason=str(error))
        return None
    if quantiles.shape != (rows, 3):
        log.warning("estimates_made_again", file=str(path), reason="not one for each prompt")
        return None
    return name, quantiles


def _save(path: Path, name: str, quantiles: Floats) -> None:
    """Whole or not at all; the oldest files go when there are too many. Raises UsageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as part:
            np.savez_compressed(part, name=np.array(name), quantiles=quantiles)
        Path(part.name).replace(path)
        kept = sorted(path.parent.glob("estimates-*.npz"), key=lambda one: one.stat().st_mtime)
        for old in kept[:-FILES_MAX]:
            old.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{CACHE_VARIABLE} {path.parent}: {error}") from error
