"""The model card: numbers for machines (card.json) and for people (README.md), and the notice."""

import json
from pathlib import Path
from typing import Any

from tagger.model import CARD_FILE
from tagger.starts import BASE_NAME

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
This length model was fine-tuned from {base_name}
{licence}, whose encoder
weights and vocabulary (tokenizer.json) it keeps in modified form.

Trained on: {data}
The text belongs to the people who wrote it and is not part of this package; only weights are.
"""
LICENCES = {BASE_NAME: f"(https://huggingface.co/{BASE_NAME}), Apache License 2.0"}


def write_card(
    folder: Path,
    *,
    name: str,
    sha256: dict[str, str],
    token_ratio: float,
    tail_tokens: int,
    training: dict[str, Any],
    difference: float,
    precision: str,
) -> None:
    """A card without quality figures; `add_quality` completes it."""
    card = {
        "name": name,
        "sha256": sha256,
        "token_ratio": round(token_ratio, 4),
        "tail_tokens": tail_tokens,
        "training": training,
        "onnx_difference_max": difference,
        "precision": precision,
    }
    (folder / CARD_FILE).write_text(json.dumps(card, indent=2) + "\n")


def add_quality(folder: Path, report: dict[str, Any], *, data: str) -> None:
    """Put measured quality into the card; write its readable form and the notice."""
    path = folder / CARD_FILE
    card = json.loads(path.read_text())
    card["data"] = data
    card["quality"] = report
    path.write_text(json.dumps(card, indent=2) + "\n")
    (folder / "README.md").write_text(_readable(card))
    base_name = card["training"]["base_name"]
    licence = LICENCES.get(base_name, "under that model's own licence")
    (folder / "NOTICE").write_text(NOTICE.format(base_name=base_name, licence=licence, data=data))


def _readable(card: dict[str, Any]) -> str:
    report, training = card["quality"], card["training"]
    took = report["cpu_ms"]
    lines = [
        f"# {card['name']}",
        "",
        "Estimates how many tokens a chat model will answer with (p10, p50, p90), from its prompt.",
        f"RoBERTa architecture, {card['precision']} ONNX, by `astrolabe tagger train | export`.",
        "",
        f"* Started from {training['base_name']}, whose licence NOTICE names.",
        *(f"* {_training(record)}" for record in _trainings(training)),
        f"* Data: {card['data']}",
        f"* Largest difference between PyTorch and fp32 ONNX: {card['onnx_difference_max']:.1e}. "
        f"The figures below are those of the {card['precision']} file; `fp32` is the same model "
        "before it was quantised.",
        f"* Token counts: {card['token_ratio']} cl100k tokens per WordPiece token.",
        f"* Speed where it was made: {took['mean']:.1f} ms of one core per prompt of the "
        f"validation file (median {took['median']:.1f}, p90 {took['p90']:.1f}).",
        "",
        "Made with, TRAIN and VALIDATION being JSONL files:",
        "",
        *(f"    {line}" for line in _commands(card)),
    ]
    for title in ("first_turn", "all"):
        if title not in report:
            continue
        rows = {"this model": report[title]}
        if "fp32" in report:
            rows["fp32"] = report["fp32"][title]
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
        "The checkpoint was chosen on a twentieth of the training data (whole conversations), not",
        "on the validation file. Turns are judged with what the file tells of the conversation",
        "before them, as a chat request tells it.",
        "Lengths are those of the assistants that ShareGPT's users talked to; another model's are",
        "ordered much alike and are longer or shorter as a whole.",
        "",
    ]
    return "\n".join(lines)


def _trainings(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of all trainings, the first one first."""
    return [*(_trainings(record["start"]) if "start" in record else []), record]


def _training(record: dict[str, Any]) -> str:
    cut = "Then cut to" if "start" in record else "Trained with"
    layers = "1 encoder layer" if record["layers"] == 1 else f"{record['layers']} encoder layers"
    taught = ", taught by the model before it" if "teacher" in record else ""
    return (
        f"{cut} {layers}{taught}: best after {record['best_step']} of {record['steps']} steps of "
        f"{record['batch_size']}, seed {record['seed']}, pinball loss on log(1 + tokens)."
    )


def _commands(card: dict[str, Any]) -> list[str]:
    """What to type to make the same again."""
    files = "--data TRAIN --validation VALIDATION"
    lines, base = [], ""
    for number, record in enumerate(_trainings(card["training"]), 1):
        out = f"trained-{number}"
        teacher = f" --teacher trained-{number - 1}" if "teacher" in record else ""
        lines.append(
            f"astrolabe tagger train --data TRAIN{base}{teacher} --layers {record['layers']} "
            f"--steps {record['steps']} --batch-size {record['batch_size']} "
            f"--rate {record['rate']} --seed {record['seed']} --out {out}"
        )
        base = f" --base {out}"
    lines.append(f"astrolabe tagger export --trained {out} {files} --name {card['name']} --out OUT")
    return lines


def _row(name: str, one: dict[str, Any]) -> str:
    coverage = "-" if one["coverage"] is None else f"{one['coverage']:.2f}"
    return (
        f"| {name} | {one['mae']:.1f} | {one['median_ae']:.0f} | {one['within_100']:.2f} "
        f"| {one['spearman']:.3f} | {one['kendall']:.3f} | {one['pair_order']:.3f} "
        f"| {one['pair_order_2x']:.3f} | {coverage} |"
    )
