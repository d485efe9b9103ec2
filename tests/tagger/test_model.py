"""The shipped model as it is served."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import UsageError
from pipeline.messages import ChatMessage
from tagger.conversation import FEATURES, Conversation, conversation_of, features
from tagger.model import CARD_FILE, MODEL_FILE, PACKAGED, TOKENIZER_FILE, LengthModel, file_hash

PROMPTS = [
    "What is the capital of France?",
    "Write a detailed essay of 2000 words on the causes of the First World War.",
    "Translate to German: good morning",
    "hi",
    "Explain step by step how a compiler works, with examples in C. " * 20,
    "🦊 \ud800 \x00",
    "",
]


@pytest.fixture(scope="module")
def model() -> LengthModel:
    return LengthModel.load()


def estimates_of(model: LengthModel, prompts: Sequence[str]) -> list[tuple[float, float, float]]:
    return [model.estimate_one(prompt) for prompt in prompts]


def test_estimates_are_ordered_and_positive(model: LengthModel) -> None:
    estimates = np.array(estimates_of(model, PROMPTS))
    assert (np.diff(estimates, axis=1) >= 0).all()
    assert (estimates >= 1).all()
    assert (estimates < 5000).all()


def test_the_same_prompt_has_the_same_estimate_whatever_came_before(model: LengthModel) -> None:
    again = estimates_of(LengthModel.load(), PROMPTS[::-1])[::-1]
    assert estimates_of(model, PROMPTS) == again


def test_no_prompts_have_no_estimates(model: LengthModel) -> None:
    assert model.estimate([]).shape == (0, 3)


def test_a_batch_has_a_row_for_each_prompt(model: LengthModel) -> None:
    """Close to what each has alone: int8 scales are taken over the batch."""
    together = model.estimate([model.read(prompt) for prompt in PROMPTS])
    np.testing.assert_allclose(together, estimates_of(model, PROMPTS), rtol=0.25)


def test_threads_share_one_model(model: LengthModel) -> None:
    with ThreadPoolExecutor(4) as threads:
        at_once = list(threads.map(model.estimate_one, PROMPTS * 5))
    assert at_once == [model.estimate_one(prompt) for prompt in PROMPTS] * 5


def test_what_runs_it_is_known(model: LengthModel) -> None:
    assert "CPUExecutionProvider" in model.providers
    assert model.name


def test_an_essay_is_expected_to_be_longer_than_a_fact(model: LengthModel) -> None:
    fact, essay = estimates_of(model, PROMPTS[:2])
    assert essay[1] > 2 * fact[1]


def test_a_chat_is_its_last_message_and_what_came_before(model: LengthModel) -> None:
    messages = [
        ChatMessage(role="system", content="You are kind."),
        ChatMessage(role="user", content="Tell me about bees."),
        ChatMessage(role="assistant", content="Bees are insects. " * 40),
        ChatMessage(role="user", content="Go on."),
    ]
    reading = model.read_chat(messages)
    counts = [model.count_tokens(message.content) for message in messages]
    told = conversation_of(messages, counts)
    assert told == Conversation(2, counts[1] + counts[2], counts[2])
    assert reading.ids == model.read("Go on.").ids
    assert reading.features == features(told)
    assert sum(counts) < reading.prompt_tokens < sum(counts) + 30


def test_of_a_bare_prompt_no_history_is_claimed() -> None:
    assert features(None) == [0.0] * FEATURES
    assert features(Conversation(0, 0, 0)) == [1.0, 0.0, 0.0, 0.0]


def test_tokens_are_counted_about_right(model: LengthModel) -> None:
    # 44 words of plain English are about 50 cl100k tokens.
    text = (
        "The quick brown fox jumps over the lazy dog while the old farmer watches from his porch "
        "and wonders why the animals never seem to get tired of this little game that they play "
        "every single morning before the sun is fully up."
    )
    assert 40 <= model.count_tokens(text) <= 60


def test_what_is_shipped_is_small_and_beats_its_baselines() -> None:
    size = sum(path.stat().st_size for path in PACKAGED.iterdir())
    assert size <= 26_000_000
    quality = json.loads((PACKAGED / CARD_FILE).read_text())["quality"]
    best = max(one["first_turn"]["spearman"] for one in quality["baselines"].values())
    assert quality["first_turn"]["spearman"] > best
    assert (PACKAGED / "NOTICE").is_file()


def test_the_card_names_no_path_of_the_machine_it_was_made_on() -> None:
    for name in (CARD_FILE, "README.md", "NOTICE"):
        text = (PACKAGED / name).read_text()
        assert not re.search(r"(?<![\w.:/])/(tmp|home|root|work|usr)\b", text), name


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(PACKAGED, folder)
    return folder


@pytest.mark.parametrize("name", [MODEL_FILE, TOKENIZER_FILE, CARD_FILE])
def test_a_missing_file_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(UsageError, match=f"{name} is missing"):
        LengthModel.load(copy)


def test_a_missing_runtime_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match=r"astrolabe\[onnx\]"):
        LengthModel.load()


def test_serving_needs_no_training_package() -> None:
    code = "import sys, tagger.model, pipeline.cli.length_model; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "transformers", "onnx", "onnxruntime", "scipy", "sklearn"}
    assert not heavy & set(done.stdout.split())


def test_a_swapped_file_is_refused(copy: Path) -> None:
    with (copy / MODEL_FILE).open("ab") as model_file:
        model_file.write(b"x")
    with pytest.raises(UsageError, match="not the file of the card"):
        LengthModel.load(copy)


def test_a_broken_model_is_an_error_in_words(copy: Path) -> None:
    (copy / MODEL_FILE).write_bytes(b"not a model")
    card = json.loads((copy / CARD_FILE).read_text())
    card["sha256"][MODEL_FILE] = file_hash(copy / MODEL_FILE)
    (copy / CARD_FILE).write_text(json.dumps(card))
    with pytest.raises(UsageError, match="length model"):
        LengthModel.load(copy)
