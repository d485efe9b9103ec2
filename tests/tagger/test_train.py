"""Training, export and what they leave behind, on a tiny network. Needs the training extra."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxscript")

import numpy as np
import torch
from rich.console import Console

from pipeline.errors import UsageError
from tagger.conversation import Conversation, features
from tagger.dataset import Row
from tagger.export import export
from tagger.model import LengthModel
from tagger.network import WEIGHTS_FILE, load_network
from tagger.scratch import make_scratch
from tagger.train import TrainSettings, _Run, train
from tagger.training_record import CHECKPOINT_FILE, RECORD_FILE

ROWS = [
    Row(
        prompt=f"{'Write a long story' if number % 2 else 'Name'} about number {number}",
        prompt_tokens=7,
        response_tokens=600 + number if number % 2 else 20,
        turn=0,
        context_tokens=0,
        prev_response_tokens=-1,
        conv=number,
    )
    for number in range(160)
]
TRAIN, HELD_OUT = ROWS[:128], ROWS[128:]
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return make_scratch(tmp_path_factory.mktemp("start"), ROWS, 2)


@pytest.fixture
def settings(start: Path) -> TrainSettings:
    return TrainSettings(
        base=start, base_name="tiny", steps=30, batch_size=16, rate=1e-3, validate_every=10
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(folder / WEIGHTS_FILE, weights_only=True)
    return found


def test_it_learns_and_writes_down_how(settings: TrainSettings, tmp_path: Path) -> None:
    train(TRAIN, HELD_OUT, tmp_path, replace(settings, steps=60), QUIET)
    record = json.loads((tmp_path / RECORD_FILE).read_text())
    assert record["rows"] == 128
    assert record["validation_loss"] < 0.3
    assert str(tmp_path) not in json.dumps(record)


def test_an_interrupted_training_ends_as_if_it_had_not_been(
    settings: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(TRAIN, HELD_OUT, whole, settings, QUIET)

    learn, steps = _Run.learn, 0

    def interrupted(self: _Run, examples: object) -> float:
        nonlocal steps
        steps += 1
        if steps == 18:  # the checkpoint is of step 10
            raise KeyboardInterrupt
        return learn(self, examples)  # type: ignore[arg-type]

    monkeypatch.setattr(_Run, "learn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(TRAIN, HELD_OUT, parts, settings, QUIET)
    monkeypatch.setattr(_Run, "learn", learn)
    train(TRAIN, HELD_OUT, parts, settings, QUIET)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(parts)[name]), name


def test_other_settings_do_not_go_on_from_a_checkpoint(
    settings: TrainSettings, tmp_path: Path
) -> None:
    train(TRAIN, HELD_OUT, tmp_path, replace(settings, steps=10), QUIET)
    with pytest.raises(UsageError, match="other settings"):
        train(TRAIN, HELD_OUT, tmp_path, replace(settings, steps=10, seed=2), QUIET)


def test_it_stops_when_it_gets_no_better(settings: TrainSettings, tmp_path: Path) -> None:
    stubborn = replace(settings, steps=400, rate=1e-7, validate_every=1, patience=3)
    shuffled = [replace_length(row, 1 + number) for number, row in enumerate(HELD_OUT)]
    train(TRAIN, shuffled, tmp_path, replace(stubborn, rate=0.5), QUIET)
    state = torch.load(tmp_path / CHECKPOINT_FILE, weights_only=True)
    assert state["stale"] == 3 and state["step"] < 400


def replace_length(row: Row, tokens: int) -> Row:
    return Row(prompt=row.prompt, response_tokens=tokens)


def test_a_smaller_model_learns_from_a_larger_one(settings: TrainSettings, tmp_path: Path) -> None:
    large, small = tmp_path / "large", tmp_path / "small"
    train(TRAIN, HELD_OUT, large, settings, QUIET)
    train(TRAIN, HELD_OUT, small, replace(settings, base=large, teacher=large, layers=1), QUIET)
    record = json.loads((small / RECORD_FILE).read_text())
    assert record["layers"] == 1
    assert record["start"] == record["teacher"] == json.loads((large / RECORD_FILE).read_text())
    assert load_network(small).encoder.config.num_hidden_layers == 1


# The exporter's own use of torch.
@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore:.*axis name:UserWarning"
)
def test_onnx_equals_pytorch(settings: TrainSettings, tmp_path: Path) -> None:
    """On real prompts through the served path, beside the export's own check on random input."""
    trained, out = tmp_path / "trained", tmp_path / "out"
    train(TRAIN, HELD_OUT, trained, settings, QUIET)
    exported = export(trained, out, tmp_path / "full", name="tiny", train_rows=TRAIN)
    assert exported.difference < 1e-4
    model, network = LengthModel.load(exported.full), load_network(trained).eval()
    for conversation in (None, Conversation(2, 100, 50)):
        prompt = HELD_OUT[1].prompt
        ids = torch.tensor([model.read(prompt).ids])
        known = torch.tensor([features(conversation)])
        with torch.no_grad():
            expected = np.expm1(network(ids, torch.ones_like(ids), known).numpy()[0])
        np.testing.assert_allclose(model.estimate_one(prompt, conversation), expected, rtol=1e-3)
    quantised = LengthModel.load(out)
    assert quantised.estimate_one(HELD_OUT[1].prompt)[1] == pytest.approx(expected[1], rel=0.5)
