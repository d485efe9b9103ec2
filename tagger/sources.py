"""Where training and evaluation data come from: a file, whichever kind it is."""

import gzip
from pathlib import Path

from pipeline.errors import UsageError
from tagger.dataset import Row, read_rows
from tagger.sharegpt import Count, read_turns

JSONL = ".jsonl"
JSON = ".json"


def read_data(path: Path, count: Count) -> list[Row]:
    """Rows of JSONL, or ShareGPT's own JSON whose tokens `count` gives; both may be gzipped.

    Raises UsageError naming the file and what is wrong in it.
    """
    kind = [suffix for suffix in path.suffixes if suffix != ".gz"][-1:]
    if kind == [JSONL]:
        return read_rows(path)
    if kind != [JSON]:
        raise UsageError(f"{path}: neither {JSONL} nor ShareGPT's {JSON} (.gz or not)")
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return read_turns(path, file, count)
