"""`astrolabe tagger train | evaluate | export | collect`. Heavy packages are imported when used."""

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import DEFAULT_URL, Credentials, Prefix, Url, bus_settings
from pipeline.errors import UsageError
from pipeline.subjects import DEFAULT_PREFIX
from tagger.starts import BASE_NAME

if TYPE_CHECKING:
    from tagger.dataset import Row

HELD_OUT_SHARE = 0.05

Data = Annotated[
    Path | None,
    typer.Option(
        help="JSONL with prompt and response_tokens (and first_turn, turn, context_tokens, "
        "prev_response_tokens, conv), or ShareGPT's own JSON; .gz or not."
    ),
]

TRAINING = ("torch", "transformers")
EXPORTING = (*TRAINING, "onnx", "onnxruntime", "onnxscript", "sklearn")


def _need(*packages: str) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise UsageError(f"{', '.join(missing)} missing: pip install 'astrolabe[train]'")


def _rows(path: Path) -> "list[Row]":
    """Of a file, ShareGPT's counted as the packaged length model counts."""
    from tagger.model import PACKAGED, LengthModel
    from tagger.sources import read_data

    return read_data(path, LengthModel.load(PACKAGED).count_tokens)


def train(
    data: Data = None,
    validation: Annotated[
        Path | None,
        typer.Option(
            help="The same, of other conversations: it chooses the checkpoint. Default: a "
            "twentieth of the data, whole conversations."
        ),
    ] = None,
    from_results: Annotated[
        bool,
        typer.Option(help="Train on the traffic of a running stack instead of a file."),
    ] = False,
    out: Annotated[
        Path,
        typer.Option(help="Folder for the best weights; an interrupted training there goes on."),
    ] = Path("length-model"),
    base: Annotated[
        str | None,
        typer.Option(
            help="Folder to start from: a RoBERTa or BERT encoder, or what an earlier `train` "
            "wrote; `scratch` for a small RoBERTa and a byte-level vocabulary made from the data. "
            f"Default: {BASE_NAME}, from its package."
        ),
    ] = None,
    teacher: Annotated[
        Path | None,
        typer.Option(help="Folder of a larger length model to learn from beside the truth."),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(min=1, max=48, help="Keep so many encoder layers: fewer are faster."),
    ] = None,
    tail_tokens: Annotated[
        int,
        typer.Option(
            min=0,
            max=126,
            help="Of the 126 tokens that are read of a long prompt, so many are its last ones.",
        ),
    ] = 40,
    steps: Annotated[
        int, typer.Option(min=1, help="Of one batch. 700 of 64 is one pass of 45,000 prompts.")
    ] = 700,
    batch_size: Annotated[int, typer.Option(min=1, max=4096, help="Prompts a step.")] = 64,
    rate: Annotated[
        float,
        typer.Option(min=1e-7, max=1, help="Peak learning rate; five times that for the head."),
    ] = 2e-4,
    seed: Annotated[int, typer.Option(min=0, help="Of the batches' order and the head.")] = 1,
    threads: Annotated[int, typer.Option(min=1, max=256, help="Cores to use.")] = 1,
    url: Url = DEFAULT_URL,
    prefix: Prefix = DEFAULT_PREFIX,
    credentials: Credentials = None,
) -> None:
    """Fine-tune a length model: prompts in, quantiles of the answer's tokens out.

    A good small model is a large one cut down: train six layers, then go on from there with
    --base FOLDER --layers 4 --teacher FOLDER.
    """
    _need(*TRAINING)
    if (data is None) != from_results:
        raise UsageError("give either --data FILE or --from-results")
    from tagger.dataset import split
    from tagger.starts import start_of
    from tagger.train import TrainSettings
    from tagger.train import train as run

    rows = asyncio.run(_traffic(url, prefix, credentials)) if data is None else _rows(data)
    held_out = None if validation is None else _rows(validation)
    if held_out is None:
        rows, held_out = split(rows, HELD_OUT_SHARE)
    if not rows or not held_out:
        raise UsageError("too few conversations to keep some aside for validation")
    start, name = start_of(base, out / "start", rows, layers)
    settings = TrainSettings(
        base=start,
        base_name=name,
        teacher=teacher,
        layers=layers,
        tail_tokens=tail_tokens,
        steps=steps,
        batch_size=batch_size,
        rate=rate,
        seed=seed,
        threads=threads,
    )
    run(rows, held_out, out, settings)


async def _traffic(url: str, prefix: str, credentials: str | None) -> "list[Row]":
    from pipeline.bus import Bus
    from tagger.from_results import read_traffic
    from tagger.model import LengthModel

    bus = await Bus.connect(bus_settings(url, prefix, credentials), name="tagger-data", timeout_s=5)
    try:
        return await read_traffic(bus, LengthModel.load().count_tokens)
    finally:
        await bus.close()


def collect(
    out: Annotated[Path, typer.Option(help="JSONL file; rows are added to what it holds.")],
    url: Url = DEFAULT_URL,
    prefix: Prefix = DEFAULT_PREFIX,
    credentials: Credentials = None,
) -> None:
    """Write down the prompts and answer lengths of the last 15 minutes' traffic, to train on.

    Prompts are people's words: treat the file as what it is.
    """
    from rich.console import Console

    from tagger.dataset import write_rows

    rows = asyncio.run(_traffic(url, prefix, credentials))
    write_rows(out, rows)
    Console().print(f"{len(rows)} rows added to {out}")


def export(
    trained: Annotated[Path, typer.Option(help="Folder that `train` wrote.")],
    data: Annotated[Path, typer.Option(help="What it was trained on, for the card's baselines.")],
    validation: Annotated[Path, typer.Option(help="Measures the exported file for its card.")],
    out: Annotated[Path, typer.Option(help="Folder for model, tokenizer and card.")],
    name: Annotated[str, typer.Option(help="Name on estimates and results.")] = "length-1",
    full_precision: Annotated[
        bool,
        typer.Option(help="Keep fp32, for a GPU: int8 is for processors, and four times smaller."),
    ] = False,
    data_note: Annotated[
        str, typer.Option(help="What the data is, for the card.")
    ] = "ShareGPT prompts with their answers' cl100k token counts, split by conversation. The text "
    "is its writers'; no licence is declared for it.",
) -> None:
    """Write the served form: int8 ONNX checked against PyTorch, tokenizer, measured card."""
    _need(*EXPORTING)
    from tempfile import TemporaryDirectory

    from rich.console import Console

    from tagger.card import add_quality
    from tagger.evaluate import as_json, evaluate_baselines, print_table
    from tagger.evaluate import evaluate as judge
    from tagger.export import export as run
    from tagger.model import LengthModel

    console = Console()
    train_rows, rows = _rows(data), _rows(validation)
    with TemporaryDirectory() as scratch:
        exported = run(
            trained,
            out,
            Path(scratch),
            name=name,
            train_rows=train_rows,
            full_precision=full_precision,
        )
        full, _ = judge(LengthModel.load(exported.full), rows)
    console.print(f"largest difference to PyTorch (fp32): {exported.difference:.1e}")
    judged, took_ms = judge(LengthModel.load(out), rows)
    beside = evaluate_baselines(train_rows, rows)
    print_table(judged, took_ms, {"fp32": full, **beside}, console)
    add_quality(out, as_json(judged, took_ms, beside, fp32=full), data=data_note)


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

    from tagger.evaluate import as_json, evaluate_baselines, print_table, write_json
    from tagger.evaluate import evaluate as judge
    from tagger.model import LengthModel

    rows = _rows(data)
    judged, took_ms = judge(LengthModel.load(model), rows)
    beside = {} if train_data is None else evaluate_baselines(_rows(train_data), rows)
    print_table(judged, took_ms, beside, Console())
    if json is not None:
        write_json(json, as_json(judged, took_ms, beside))
