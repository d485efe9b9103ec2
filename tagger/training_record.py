"""What a training leaves in its folder: the best weights and how they came to be, and a checkpoint
to go on from."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pipeline.errors import UsageError
from tagger.model import TOKENIZER_FILE
from tagger.network import WEIGHTS_FILE, LengthNetwork

if TYPE_CHECKING:
    from tagger.train import TrainSettings

RECORD_FILE = "training.json"
CHECKPOINT_FILE = "checkpoint.pt"


def save_best(
    out: Path, network: LengthNetwork, settings: "TrainSettings", step: int, loss: float, rows: int
) -> None:
    """The weights that are the best so far."""
    torch.save(network.state_dict(), out / WEIGHTS_FILE)
    network.encoder.config.save_pretrained(out)
    (out / TOKENIZER_FILE).write_bytes((settings.base / TOKENIZER_FILE).read_bytes())
    record = {
        **_told(settings),
        "layers": network.encoder.config.num_hidden_layers,
        "rows": rows,
        "best_step": step,
        "validation_loss": round(loss, 5),
    }
    for part, folder in (("start", settings.base), ("teacher", settings.teacher)):
        if folder is not None and (folder / RECORD_FILE).is_file():
            record[part] = json.loads((folder / RECORD_FILE).read_text())
    if "start" in record:
        record["base_name"] = record["start"]["base_name"]
    (out / RECORD_FILE).write_text(json.dumps(record, indent=2) + "\n")


def save_checkpoint(out: Path, settings: "TrainSettings", state: dict[str, Any]) -> None:
    """Written beside and moved into place: an interruption leaves the old one."""
    path = out / CHECKPOINT_FILE
    beside = path.with_suffix(".new")
    torch.save({"settings": json.dumps(_told(settings)), **state}, beside)
    beside.replace(path)


def read_checkpoint(out: Path, settings: "TrainSettings") -> dict[str, Any] | None:
    """What an interrupted training left; None where there was none."""
    path = out / CHECKPOINT_FILE
    if not path.is_file():
        return None
    state: dict[str, Any] = torch.load(path, weights_only=True)
    if state.pop("settings") != json.dumps(_told(settings)):
        raise UsageError(f"{out}: holds a training with other settings; choose another --out")
    return state


def _told(settings: "TrainSettings") -> dict[str, Any]:
    """The settings without this machine's paths and cores."""
    told = asdict(settings)
    for machine_own in ("base", "teacher", "threads"):
        del told[machine_own]
    return told
