"""The model card: numbers for machines (card.json) and for people (README.md), and the notice."""

import json
from pathlib import Path
from typing import Any

from tagger.model import CARD_FILE

COLUMNS = (
    "estimator",
    "MAE",
    "median AE",
    "within 100",
    "Spearman",
    "Kendall",
    "pairs",
    "pairs 2x",
    "p10 to p90",
)

NOTICE = """\
This length model was fine-tuned from sentence-transformers/all-MiniLM-L6-v2
(https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2), Apache License 2.0, whose encoder
weights and WordPiece vocabulary (tokenizer.json) it keeps in modified form.

It was trained on prompts and answer lengths of ShareGPT conversations. Their text belongs to the
people who wrote it and is not part of this package; only weights are.
"""


def write_card(
    folder: Path,
    *,
    name: str,
    sha256: dict[str, str],
    token_ratio: float,
    training: dict[str, Any],
    difference: float,
) -> None:
    """A card without quality figures; `add_quality` completes it."""
    card = {
        "name": name,
        "sha256": sha256,
        "token_ratio": round(token_ratio, 4),
        "training": training,
        "onnx_difference_max": difference,
    }
    (folder / CARD_FILE).write_text(json.dumps(card, indent=2) + "\n")
    (folder / "NOTICE").write_text(NOTICE)


def add_quality(folder: Path, report: dict[str, Any], *, data: str) -> None:
    """Put measured quality into the card and write its readable form."""
    path = folder / CARD_FILE
    card = json.loads(path.read_text())
    card["data"] = data
    card["quality"] = report
    path.write_text(json.dumps(card, indent=2) + "\n")
    (folder / "README.md").write_text(_readable(card))


def _readable(card: dict[str, Any]) -> str:
    report, training = card["quality"], card["training"]
    lines = [
        f"# {card['name']}",
        "",
        "Estimates how many tokens a chat model will answer with (p10, p50, p90), from its prompt.",
        "RoBERTa architecture, int8 ONNX, made by `astrolabe tagger train | export | evaluate`.",
        "",
        f"* Started from {training['base_name']}, "
        f"encoder layers kept: {training['layers'] or 'all'}.",
        f"* Trained for {training['best_step']} steps of {training['batch_size']}, "
        f"seed {training['seed']}, pinball loss on log(1 + tokens).",
        f"* Data: {card['data']}",
        f"* Largest difference between PyTorch and fp32 ONNX: {card['onnx_difference_max']:.1e}. "
        "The figures below are those of the int8 file.",
        f"* Token counts: {card['token_ratio']} cl100k tokens per WordPiece token.",
    ]
    for title in ("first_turn", "all"):
        if title not in report:
            continue
        rows = {"this model": report[title]}
        rows |= {name: sets[title] for name, sets in report["baselines"].items()}
        lines += [
            "",
            f"## Validation, {title.replace('_', ' ')} (n = {report[title]['n']})",
            "",
            f"| {' | '.join(COLUMNS)} |",
            "|" + "---|" * len(COLUMNS),
        ]
        lines += [_row(name, one) for name, one in rows.items()]
    lines += [
        "",
        "The validation file chose the checkpoint, so these figures flatter the model a little.",
        "Lengths are those of the assistants that ShareGPT's users talked to; another model's are",
        "ordered much alike and are longer or shorter as a whole.",
        "",
    ]
    return "\n".join(lines)


def _row(name: str, one: dict[str, Any]) -> str:
    coverage = "-" if one["coverage"] is None else f"{one['coverage']:.2f}"
    return (
        f"| {name} | {one['mae']:.1f} | {one['median_ae']:.0f} | {one['within_100']:.2f} "
        f"| {one['spearman']:.3f} | {one['kendall']:.3f} | {one['pair_order']:.3f} "
        f"| {one['pair_order_2x']:.3f} | {coverage} |"
    )
