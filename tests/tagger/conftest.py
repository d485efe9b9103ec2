"""Fixtures of the tagger's tests."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tagger.model import CARD_FILE, MODEL_FILE, PACKAGED, TOKENIZER_FILE, file_hash


@pytest.fixture
def damaged_model() -> Callable[[Path], Path]:
    """Makes a folder whose card agrees with its files, one of which is no model."""

    def make(folder: Path) -> Path:
        shutil.copyfile(PACKAGED / TOKENIZER_FILE, folder / TOKENIZER_FILE)
        (folder / MODEL_FILE).write_bytes(b"not a model")
        card = json.loads((PACKAGED / CARD_FILE).read_text())
        card["sha256"][MODEL_FILE] = file_hash(folder / MODEL_FILE)
        (folder / CARD_FILE).write_text(json.dumps(card))
        return folder

    return make
