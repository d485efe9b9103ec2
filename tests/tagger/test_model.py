"""The shipped model as it is served."""

import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import UsageError
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


def test_estimates_are_ordered_and_positive(model: LengthModel) -> None:
    estimates = model.estimate(PROMPTS)
    assert estimates.shape == (len(PROMPTS), 3)
    assert (np.diff(estimates, axis=1) >= 0).all()
    assert (estimates >= 1).all()
    assert (estimates < 5000).all()


def test_an_estimate_depends_on_its_prompt_alone(model: LengthModel) -> None:
    together = model.estimate(PROMPTS)
    alone = np.concatenate([model.estimate([prompt]) for prompt in PROMPTS])
    again = LengthModel.load().estimate(PROMPTS[::-1])[::-1]
    assert np.array_equal(together, alone)
    assert np.array_equal(together, again)


def test_no_prompts_have_no_estimates(model: LengthModel) -> None:
    assert model.estimate([]).shape == (0, 3)


def test_threads_share_one_model(model: LengthModel) -> None:
    with ThreadPoolExecutor(4) as threads:
        at_once = list(threads.map(model.estimate_one, PROMPTS * 5))
    assert at_once == [model.estimate_one(prompt) for prompt in PROMPTS] * 5


def test_what_runs_it_is_known(model: LengthModel) -> None:
    assert "CPUExecutionProvider" in model.providers
    assert model.name


def test_an_essay_is_expected_to_be_longer_than_a_fact(model: LengthModel) -> None:
    fact, essay = model.estimate(PROMPTS[:2])
    assert essay[1] > 2 * fact[1]


def test_one_call_gives_count_and_estimate(model: LengthModel) -> None:
    for prompt in PROMPTS:
        count, quantiles = model.estimate_one(prompt)
        assert count == model.count_tokens(prompt) >= 1
        assert quantiles == tuple(model.estimate([prompt])[0])


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
    code = "import sys, tagger.model, tagger.commands; print(*sys.modules)"
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
