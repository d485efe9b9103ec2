"""Fine-tuning the length model on prompts and the lengths of their answers."""

import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tagger.dataset import Row, read_rows
from tagger.model import TOKENIZER_FILE
from tagger.network import WEIGHTS_FILE, LengthNetwork, load_network, pinball
from tagger.text import PromptTokenizer, batch

RECORD_FILE = "training.json"
WARM_UP_SHARE = 0.06
WEIGHT_DECAY = 0.01
HEAD_RATE_FACTOR = 10.0  # the head starts from nothing, the encoder from a trained one
BUCKET_BATCHES = 50  # batches that are formed together, by length: little padding, still mixed


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Everything that decides the outcome; written beside the weights."""

    base: Path
    """Folder to start from: an encoder, or a length model that was trained before."""
    base_name: str
    """What the card calls it: a path of this machine means nothing elsewhere."""
    layers: int | None = None
    steps: int = 700
    batch_size: int = 64
    rate: float = 1e-4
    seed: int = 1
    threads: int = 1
    validate_every: int = 150


def train(train_file: Path, validation_file: Path, out: Path, settings: TrainSettings) -> None:
    """Train, and leave the best weights by validation loss in `out`."""
    random.seed(settings.seed)
    torch.manual_seed(settings.seed)
    torch.set_num_threads(settings.threads)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = PromptTokenizer.load(settings.base / TOKENIZER_FILE)
    examples = _encoded(read_rows(train_file), tokenizer)
    held_out = _encoded(read_rows(validation_file), tokenizer)
    network = load_network(settings.base, settings.layers)
    optimiser = torch.optim.AdamW(
        [
            {"params": network.encoder.parameters(), "lr": settings.rate},
            {"params": network.head.parameters(), "lr": settings.rate * HEAD_RATE_FACTOR},
        ],
        weight_decay=WEIGHT_DECAY,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda n: _rate(n, settings.steps))
    batches = _batches(examples, settings.batch_size, random.Random(settings.seed))
    console = Console()
    best = float("inf")
    started = time.monotonic()
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}  validation {task.fields[held_out]:.4f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=settings.steps, loss=float("nan"), held_out=best)
        for step in range(1, settings.steps + 1):
            network.train()
            loss = _loss(network, next(batches), tokenizer.pad)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            progress.update(task, advance=1, loss=loss.item())
            if step % settings.validate_every == 0 or step == settings.steps:
                held_out_loss = _validate(network, held_out, tokenizer.pad)
                progress.update(task, held_out=held_out_loss)
                minutes = (time.monotonic() - started) / 60
                console.print(f"step {step}: validation {held_out_loss:.4f}, {minutes:.1f} min")
                if held_out_loss < best:
                    best = held_out_loss
                    _save(network, out, settings, step, best)


Example = tuple[list[int], float]


def _encoded(rows: Sequence[Row], tokenizer: PromptTokenizer) -> list[Example]:
    return [
        (tokenizer.tokens(row.prompt).ids, float(np.log1p(row.response_tokens))) for row in rows
    ]


def _batches(
    examples: Sequence[Example], size: int, rng: random.Random
) -> Iterator[Sequence[Example]]:
    """Endless batches of like length: each bucket is sorted, its batches are shuffled."""
    while True:
        order = list(examples)
        rng.shuffle(order)
        for start in range(0, len(order), size * BUCKET_BATCHES):
            bucket = sorted(order[start : start + size * BUCKET_BATCHES], key=lambda e: len(e[0]))
            parts = [bucket[i : i + size] for i in range(0, len(bucket), size)]
            rng.shuffle(parts)
            yield from parts


def _loss(network: LengthNetwork, examples: Sequence[Example], pad: int) -> torch.Tensor:
    ids, mask = batch([ids for ids, _ in examples], pad)
    target = torch.tensor([length for _, length in examples])
    return pinball(network(torch.from_numpy(ids), torch.from_numpy(mask)), target)


@torch.no_grad()
def _validate(network: LengthNetwork, examples: Sequence[Example], pad: int) -> float:
    network.eval()
    ordered = sorted(examples, key=lambda example: len(example[0]))
    losses = [
        _loss(network, ordered[start : start + 64], pad).item() * len(ordered[start : start + 64])
        for start in range(0, len(ordered), 64)
    ]
    return float(sum(losses) / len(examples))


def _rate(step: int, steps: int) -> float:
    """Linear warm-up, linear decay to nothing."""
    warm_up = max(1, round(steps * WARM_UP_SHARE))
    if step < warm_up:
        return (step + 1) / warm_up
    return max(0.0, (steps - step) / max(1, steps - warm_up))


def _save(
    network: LengthNetwork, out: Path, settings: TrainSettings, step: int, loss: float
) -> None:
    torch.save(network.state_dict(), out / WEIGHTS_FILE)
    network.encoder.config.save_pretrained(out)
    (out / TOKENIZER_FILE).write_bytes((settings.base / TOKENIZER_FILE).read_bytes())
    record = _record(settings, network.encoder.config.num_hidden_layers, step, loss)
    (out / RECORD_FILE).write_text(json.dumps(record, indent=2) + "\n")


def _record(settings: TrainSettings, layers: int, step: int, loss: float) -> dict[str, Any]:
    """How the weights came to be; `start` is the record of the length model they started from."""
    record = {**asdict(settings), "layers": layers, "best_step": step}
    record["validation_loss"] = round(loss, 5)
    del record["base"]
    before = settings.base / RECORD_FILE
    if before.is_file():
        record["start"] = json.loads(before.read_text())
        record["base_name"] = record["start"]["base_name"]
    return record
