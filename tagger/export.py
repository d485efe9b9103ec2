"""From trained weights to the folder that is served: int8 ONNX, tokenizer, card, notice."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic

from pipeline.errors import UsageError
from tagger.card import write_card
from tagger.dataset import Row
from tagger.model import MODEL_FILE, TOKENIZER_FILE, file_hash
from tagger.network import WEIGHTS_FILE, LengthNetwork, load_network
from tagger.text import PromptTokenizer
from tagger.train import RECORD_FILE

OPSET = 18
DIFFERENCE_MAX = 1e-3
RATIO_ROWS_MAX = 5_000


def export(trained: Path, out: Path, *, name: str, train_rows: Sequence[Row]) -> float:
    """Write model, tokenizer and a bare card to `out`; returns the largest fp32 difference."""
    for needed in (WEIGHTS_FILE, RECORD_FILE, TOKENIZER_FILE):
        if not (trained / needed).is_file():
            raise UsageError(f"{trained}: {needed} is missing; `tagger train` writes it")
    network = load_network(trained).eval()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        full = Path(folder) / "full.onnx"
        _to_onnx(network, full)
        difference = check(network, full)
        if difference > DIFFERENCE_MAX:
            raise UsageError(f"ONNX differs from PyTorch by {difference:.2e}; nothing was written")
        # Per channel and in 7 bits: rank correlation as in fp32 (one scale a matrix loses 0.01),
        # and no saturation on processors without VNNI. As fast, and 50 kB larger.
        quantize_dynamic(
            full,
            out / MODEL_FILE,
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
        )
    shutil.copyfile(trained / TOKENIZER_FILE, out / TOKENIZER_FILE)
    write_card(
        out,
        name=name,
        sha256={file: file_hash(out / file) for file in (MODEL_FILE, TOKENIZER_FILE)},
        token_ratio=token_ratio(PromptTokenizer.load(out / TOKENIZER_FILE), train_rows),
        training=json.loads((trained / RECORD_FILE).read_text()),
        difference=difference,
    )
    return difference


def _to_onnx(network: LengthNetwork, path: Path) -> None:
    ids, mask = _random_input(2, 16, network.encoder.config.vocab_size)
    rows, length = torch.export.Dim("rows"), torch.export.Dim("length", max=512)
    torch.onnx.export(
        network,
        (ids, mask),
        str(path),
        dynamo=True,
        opset_version=OPSET,
        input_names=["input_ids", "attention_mask"],
        output_names=["quantiles"],
        dynamic_shapes={
            "input_ids": {0: rows, 1: length},
            "attention_mask": {0: rows, 1: length},
        },
        external_data=False,
        verbose=False,
    )


def check(network: LengthNetwork, path: Path) -> float:
    """Largest difference between PyTorch and ONNX on random input, padding included."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for rows, length in ((1, 3), (1, 128), (4, 40), (7, 90)):
        ids, mask = _random_input(rows, length, network.encoder.config.vocab_size)
        with torch.no_grad():
            expected = network(ids, mask).numpy()
        (got,) = session.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
        worst = max(worst, float(np.abs(expected - got).max()))
    return worst


def _random_input(rows: int, length: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ids; every row but the first is padded."""
    generator = torch.Generator().manual_seed(rows * 1000 + length)
    ids = torch.randint(1000, vocabulary, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        mask[row, max(2, length - row * 3) :] = 0
    return ids * mask, mask


def token_ratio(tokenizer: PromptTokenizer, rows: Sequence[Row]) -> float:
    """Tokens of the served model per token of ours, over all prompts whose count is known."""
    known = [row for row in rows[:RATIO_ROWS_MAX] if row.prompt_tokens]
    if not known:
        return 1.0
    ours = sum(tokenizer.tokens(row.prompt).counted for row in known)
    return sum(row.prompt_tokens or 0 for row in known) / max(1, ours)
