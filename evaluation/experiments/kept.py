"""Figures of cells that have been run, one small file a cell, so that an interrupted experiment
goes on where it was and experiments share their runs."""

import os
from pathlib import Path

import msgspec

from evaluation.experiments.cells import Cell, Figures
from pipeline.errors import UsageError


class KeptFigures:
    """In `folder`, under the cell's key. With `fresh` nothing is found, and all is kept anew."""

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        """Raises UsageError where the folder cannot be made."""
        self._folder = folder
        self._fresh = fresh
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out {folder}: {error.strerror}") from error

    def find(self, cell: Cell) -> Figures | None:
        """None where it was not run yet, or its file is damaged: it can be run again."""
        if self._fresh:
            return None
        try:
            return msgspec.json.decode(self._file(cell).read_bytes(), type=Figures)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def keep(self, cell: Cell, figures: Figures) -> None:
        """Whole or not at all."""
        path = self._file(cell)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(msgspec.json.encode(figures))
        part.replace(path)

    def _file(self, cell: Cell) -> Path:
        return self._folder / f"{cell.key()}.json"
