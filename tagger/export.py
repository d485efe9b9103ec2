"""From trained weights to the folder that is served: ONNX, tokenizer, card, notice."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic

from pipeline.errors import UsageError
from tagger.card import write_card
from tagger.conversation import FEATURES
from tagger.dataset import Row
from tagger.model import MODEL_FILE, TOKENIZER_FILE, file_hash
from tagger.network import WEIGHTS_FILE, LengthNetwork, load_network
from tagger.text import TAIL_TOKENS, PromptTokenizer
from tagger.training_record import RECORD_FILE

OPSET = 18
DIFFERENCE_MAX = 1e-3
RATIO_ROWS_MAX = 5_000


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written, and how it was checked."""

    difference: float
    """Largest between PyTorch and the fp32 ONNX."""
    full: Path
    """A folder like `out` with the fp32 model; a temporary one where int8 is served."""


def export(
    trained: Path,
    out: Path,
    scratch: Path,
    *,
    name: str,
    train_rows: Sequence[Row],
    full_precision: bool = False,
) -> Exported:
    """Write model, tokenizer and a bare card to `out`, and to `scratch` the same in fp32."""
    for needed in (WEIGHTS_FILE, RECORD_FILE, TOKENIZER_FILE):
        if not (trained / needed).is_file():
            raise UsageError(f"{trained}: {needed} is missing; `tagger train` writes it")
    network = load_network(trained).eval()
    full = out if full_precision else scratch
    for folder in (out, full):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(trained / TOKENIZER_FILE, folder / TOKENIZER_FILE)
    _to_onnx(network, full / MODEL_FILE)
    difference = check(network, full / MODEL_FILE)
    if difference > DIFFERENCE_MAX:
        raise UsageError(f"ONNX differs from PyTorch by {difference:.2e}; nothing was written")
    if not full_precision:
        # Per channel and in 7 bits: rank correlation as in fp32 (one scale a matrix loses 0.01),
        # and no saturation on processors without VNNI. As fast, and 50 kB larger.
        quantize_dynamic(
            full / MODEL_FILE,
            out / MODEL_FILE,
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
        )
    training = json.loads((trained / RECORD_FILE).read_text())
    ratio = token_ratio(PromptTokenizer.load(out / TOKENIZER_FILE), train_rows)
    for folder in {out, full}:
        write_card(
            folder,
            name=name,
            sha256={file: file_hash(folder / file) for file in (MODEL_FILE, TOKENIZER_FILE)},
            token_ratio=ratio,
            tail_tokens=training.get("tail_tokens", TAIL_TOKENS),
            training=training,
            difference=difference,
            precision="fp32" if folder == full else "int8",
        )
    return Exported(difference, full)


def _to_onnx(network: LengthNetwork, path: Path) -> None:
    example = _random_input(2, 16, network.encoder.config.vocab_size)
    rows, length = torch.export.Dim("rows"), torch.export.Dim("length", max=512)
    torch.onnx.export(
        network,
        example,
        str(path),
        dynamo=True,
        opset_version=OPSET,
        input_names=["input_ids", "attention_mask", "features"],
        output_names=["quantiles"],
        dynamic_shapes={
            "input_ids": {0: rows, 1: length},
            "attention_mask": {0: rows, 1: length},
            "features": {0: rows},
        },
        external_data=False,
        verbose=False,
    )


def check(network: LengthNetwork, path: Path) -> float:
    """Largest difference between PyTorch and ONNX on random input, padding included."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for rows, length in ((1, 3), (1, 128), (4, 40), (7, 90)):
        tensors = _random_input(rows, length, network.encoder.config.vocab_size)
        with torch.no_grad():
            expected = network(*tensors).numpy()
        names = ("input_ids", "attention_mask", "features")
        given = {name: t.numpy() for name, t in zip(names, tensors, strict=True)}
        (got,) = session.run(None, given)
        worst = max(worst, float(np.abs(expected - got).max()))
    return worst


def _random_input(
    rows: int, length: int, vocabulary: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random ids and features; every row but the first is padded."""
    generator = torch.Generator().manual_seed(rows * 1000 + length)
    ids = torch.randint(vocabulary // 2, vocabulary, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        mask[row, max(2, length - row * 3) :] = 0
    return ids * mask, mask, torch.rand(rows, FEATURES, generator=generator)


def token_ratio(tokenizer: PromptTokenizer, rows: Sequence[Row]) -> float:
    """Tokens of the served model per token of ours, over all prompts whose count is known."""
    known = [row for row in rows[:RATIO_ROWS_MAX] if row.prompt_tokens]
    if not known:
        return 1.0
    ours = sum(tokenizer.tokens(row.prompt).counted for row in known)
    return sum(row.prompt_tokens or 0 for row in known) / max(1, ours)
