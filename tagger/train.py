"""Fine-tuning the length model on prompts and the lengths of their answers.

What is kept is a moving average of the weights: smoother than the last step's, for nothing. A
smaller model learns better from a larger one beside the truth (`teacher`): what an answer's length
has of chance, a teacher's quantiles have not.
"""

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch.nn.functional import l1_loss
from torch.optim.swa_utils import AveragedModel

from pipeline.errors import UsageError
from tagger.conversation import FEATURES, features
from tagger.dataset import Row
from tagger.model import TOKENIZER_FILE
from tagger.network import LengthNetwork, load_network, pinball
from tagger.text import TAIL_TOKENS, PromptTokenizer, batch
from tagger.training_progress import shown
from tagger.training_record import read_checkpoint, save_best, save_checkpoint

WARM_UP_SHARE = 0.06
WEIGHT_DECAY = 0.01
FRESH_RATE_FACTOR = 5.0  # the head starts from nothing, the encoder from a trained one
AVERAGE_DECAY = 0.995
BUCKET_BATCHES = 50  # batches that are formed together, by length: little padding, still mixed
HISTORY_DROPPED = (
    0.3  # share of rows that are told nothing of their conversation: it must do without
)
TEACHER_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Everything that decides the outcome; written beside the weights."""

    base: Path
    """Folder to start from: an encoder, or a length model that was trained before."""
    base_name: str
    """What the card calls it: a path of this machine means nothing elsewhere."""
    teacher: Path | None = None
    """Folder of a trained length model to learn from beside the truth."""
    layers: int | None = None
    tail_tokens: int = TAIL_TOKENS
    """Of a long prompt's end; 0 is plain truncation."""
    steps: int = 700
    batch_size: int = 64
    rate: float = 1e-4
    seed: int = 1
    threads: int = 1
    validate_every: int = 100
    patience: int = 5
    """Validations without a better one, after which it stops."""


def train(
    rows: Sequence[Row],
    validation: Sequence[Row],
    out: Path,
    settings: TrainSettings,
    console: Console | None = None,
) -> None:
    """Train, and leave the best weights by validation loss in `out`.

    Goes on from the last validation where `out` holds an interrupted training with the same
    settings; raises UsageError where it holds one with others.
    """
    console = console or Console()
    torch.manual_seed(settings.seed)
    torch.set_num_threads(settings.threads)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = PromptTokenizer.load(settings.base / TOKENIZER_FILE, settings.tail_tokens)
    examples, held_out = _encoded(rows, tokenizer), _encoded(validation, tokenizer)
    run = _Run(settings, tokenizer.pad)
    state = read_checkpoint(out, settings)
    if state is not None:
        run.load(state)
        console.print(f"going on after step {run.step}")
    batches = _batches(examples, settings.batch_size, random.Random(settings.seed))
    for _ in range(run.step):
        next(batches)
    started, first = time.monotonic(), run.step
    with shown(settings.steps, run.step, console) as progress:
        while run.step < settings.steps and run.stale < settings.patience:
            batch_loss = run.learn(next(batches))
            progress(run.step, batch_loss, run.best)
            if run.step % settings.validate_every and run.step != settings.steps:
                continue
            loss = run.validate(held_out)
            minutes = (time.monotonic() - started) / 60
            console.print(
                f"step {run.step}: validation {loss:.4f}, {minutes:.1f} min "
                f"for {run.step - first} steps"
            )
            if run.improved(loss):
                save_best(out, run.averaged, settings, run.step, loss, len(rows))
            save_checkpoint(out, settings, run.state())
    if run.stale >= settings.patience:
        console.print(f"stopped: no better for {settings.patience} validations")


Example = tuple[list[int], list[float], float]
"""Ids, features, log(1 + tokens)."""


class _Run:
    """The network on its way, its average, and how far it is."""

    def __init__(self, settings: TrainSettings, pad: int) -> None:
        self.network = load_network(settings.base, settings.layers)
        self._settings = settings
        self._pad = pad
        self._average = AveragedModel(self.network, avg_fn=_averaged)
        self._teacher = None
        if settings.teacher is not None:
            if (settings.teacher / TOKENIZER_FILE).read_bytes() != (
                settings.base / TOKENIZER_FILE
            ).read_bytes():
                raise UsageError("--teacher: has another tokenizer than the model it is to teach")
            self._teacher = load_network(settings.teacher).eval()
        fresh = [p for part in self.network.fresh_parts() for p in part.parameters()]
        self._optimiser = torch.optim.AdamW(
            [
                {"params": self.network.encoder.parameters(), "lr": settings.rate},
                {"params": fresh, "lr": settings.rate * FRESH_RATE_FACTOR},
            ],
            weight_decay=WEIGHT_DECAY,
        )
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimiser, lambda n: _rate(n, settings.steps)
        )
        self.step = 0
        self.stale = 0
        self.best = float("inf")

    @property
    def averaged(self) -> LengthNetwork:
        network: LengthNetwork = self._average.module
        return network

    def learn(self, examples: Sequence[Example]) -> float:
        """One step; the loss of its batch."""
        self.network.train()
        ids, mask, known, target = _tensors(examples, self._pad)
        # Which rows go without their history depends on the step alone: a resumed run agrees.
        generator = torch.Generator().manual_seed(self._settings.seed * 1_000_003 + self.step)
        kept = torch.rand(len(examples), 1, generator=generator) >= HISTORY_DROPPED
        known = known * kept
        predicted = self.network(ids, mask, known)
        loss = pinball(predicted, target)
        if self._teacher is not None:
            with torch.no_grad():
                taught = self._teacher(ids, mask, known)
            loss = (1 - TEACHER_SHARE) * loss + TEACHER_SHARE * l1_loss(predicted, taught)
        self._optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self._optimiser.step()
        self._schedule.step()
        self._average.update_parameters(self.network)
        self.step += 1
        return float(loss.item())

    @torch.no_grad()
    def validate(self, examples: Sequence[Example]) -> float:
        """Pinball loss of the average against the truth."""
        network = self.averaged.eval()
        ordered = sorted(examples, key=lambda example: len(example[0]))
        total = 0.0
        for start in range(0, len(ordered), 64):
            part = ordered[start : start + 64]
            ids, mask, known, target = _tensors(part, self._pad)
            total += pinball(network(ids, mask, known), target).item() * len(part)
        return total / len(examples)

    def improved(self, loss: float) -> bool:
        """Take note of a validation."""
        if loss < self.best:
            self.best, self.stale = loss, 0
            return True
        self.stale += 1
        return False

    def state(self) -> dict[str, Any]:
        return {
            "network": self.network.state_dict(),
            "average": self._average.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "schedule": self._schedule.state_dict(),
            "random": torch.get_rng_state(),
            "step": self.step,
            "stale": self.stale,
            "best": self.best,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self._average.load_state_dict(state["average"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["random"])
        self.step, self.stale, self.best = state["step"], state["stale"], state["best"]


def _encoded(rows: Sequence[Row], tokenizer: PromptTokenizer) -> list[Example]:
    return [
        (
            tokenizer.tokens(row.prompt).ids,
            features(row.conversation),
            float(np.log1p(row.response_tokens)),
        )
        for row in rows
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


def _tensors(
    examples: Sequence[Example], pad: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    ids, mask = batch([ids for ids, _, _ in examples], pad)
    known = torch.tensor([known for _, known, _ in examples]).reshape(len(examples), FEATURES)
    target = torch.tensor([length for _, _, length in examples])
    return torch.from_numpy(ids), torch.from_numpy(mask), known, target


def _averaged(average: torch.Tensor, current: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """Exponential, and quicker in the beginning: the start is soon forgotten."""
    decay = min(AVERAGE_DECAY, (1 + float(step)) / (10 + float(step)))
    return average * decay + current * (1 - decay)


def _rate(step: int, steps: int) -> float:
    """Linear warm-up, linear decay to nothing."""
    warm_up = max(1, round(steps * WARM_UP_SHARE))
    if step < warm_up:
        return (step + 1) / warm_up
    return max(0.0, (steps - step) / max(1, steps - warm_up))
