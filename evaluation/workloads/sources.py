"""Where each source's file lies, what its columns are called, and from where it can be fetched."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from evaluation.workloads.lengths import LengthTable
from evaluation.workloads.sharegpt import read_sharegpt
from evaluation.workloads.tables import Columns, read_table
from evaluation.workloads.tagged import read_tagged
from pipeline.errors import UsageError

FOLDER_VARIABLE = "ASTROLABE_DATA"
CUT = Columns()
CUT_TRACE = Columns(at="t")
"""The plain form of any source: `prompt_tokens`, `response_tokens`, and `t` in seconds."""
VIDUR = Columns(prompt=("num_prefill_tokens",), response="num_decode_tokens")
SHAREGPT_CHAT = Columns(prompt=("context_tokens", "prompt_tokens"))


@dataclass(frozen=True, slots=True)
class Source:
    """Files that hold the same thing; the first one that is there is read."""

    files: tuple[tuple[str, Callable[[Path], LengthTable]], ...]
    """Name in the data folder, and its reader."""
    advice: str
    """What to do where none is there."""

    def read(self, folder: Path) -> LengthTable:
        """Raises UsageError where no file is there, or it cannot be read."""
        for name, read in self.files:
            if (folder / name).is_file():
                return read(folder / name)
        names = " or ".join(name for name, _ in self.files)
        raise UsageError(f"{folder}: {names} is missing; {self.advice}")


def data_folder(folder: Path | None) -> Path:
    """`folder`, else the one that ASTROLABE_DATA names. Raises UsageError."""
    if folder is None:
        named = os.environ.get(FOLDER_VARIABLE)
        if not named:
            raise UsageError(
                f"this workload reads a file: give its folder, or set {FOLDER_VARIABLE} "
                "(docs/workloads.md says what to put there); synthetic needs none"
            )
        folder = Path(named)
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder ({FOLDER_VARIABLE})")
    return folder


def _table(columns: Columns) -> Callable[[Path], LengthTable]:
    return partial(read_table, columns=columns)


SOURCES: dict[str, Source] = {
    "sharegpt-llama2": Source(
        (
            ("sharegpt_llama2_7b_lengths.csv.gz", _table(CUT)),
            ("sharegpt_val_10k_llama2.csv", _table(VIDUR)),
        ),
        "fetch it from github.com/AKafakA/vidur_opt_scheduler, data/trace_data/sharegpt",
    ),
    "sharegpt": Source(
        (
            ("sharegpt_lengths.csv.gz", _table(Columns(only=("first_turn", "1")))),
            ("ShareGPT_V3_unfiltered_cleaned_split.json", read_sharegpt),
        ),
        "fetch it from huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered",
    ),
    "sharegpt-chat": Source(
        (("sharegpt_lengths.csv.gz", _table(SHAREGPT_CHAT)),),
        "make it of the public file: prompt_tokens, response_tokens, context_tokens of each turn",
    ),
    "sharegpt-tagged": Source(
        (("sharegpt_val.jsonl.gz", read_tagged),),
        "it is the length model's validation file (docs/workloads.md)",
    ),
    "arxiv": Source(
        (
            ("arxiv_summarization_lengths.csv.gz", _table(VIDUR)),
            ("arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv", _table(VIDUR)),
        ),
        "fetch it from github.com/microsoft/vidur, data/processed_traces",
    ),
    "azure-conv": Source(
        (
            ("azure_llm_2023_conv.csv.gz", _table(CUT_TRACE)),
            (
                "AzureLLMInferenceTrace_conv.csv",
                _table(Columns(("ContextTokens",), "GeneratedTokens", "TIMESTAMP", "date")),
            ),
        ),
        "fetch it from github.com/Azure/AzurePublicDataset, data",
    ),
    "mooncake": Source(
        (
            ("mooncake_conversation.csv.gz", _table(CUT_TRACE)),
            (
                "conversation_trace.jsonl",
                _table(Columns(("input_length",), "output_length", "timestamp", "ms")),
            ),
        ),
        "fetch it from github.com/kvcache-ai/Mooncake, FAST25-release/traces",
    ),
    "servegen-mlarge": Source(
        (("servegen_mlarge_day0.csv.gz", _table(CUT_TRACE)),),
        "draw it with github.com/alibaba/ServeGen: t, prompt_tokens, response_tokens",
    ),
    "burstgpt": Source(
        (
            (
                "BurstGPT_1.csv",
                _table(Columns(("Request tokens",), "Response tokens", "Timestamp")),
            ),
        ),
        "fetch it from github.com/HPMLL/BurstGPT, its releases",
    ),
}
