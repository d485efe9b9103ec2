"""The length model as it is served: an int8 ONNX file, its tokenizer, its card. No torch here."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.errors import UsageError
from tagger.text import PromptTokenizer, batch

PACKAGED = Path(__file__).parent / "model"
MODEL_FILE, TOKENIZER_FILE, CARD_FILE = "model.onnx", "tokenizer.json", "card.json"
PROVIDERS = ["CUDAExecutionProvider", "CPUExecutionProvider"]


class Card(msgspec.Struct, frozen=True):
    """What serving needs of the model card."""

    name: str
    sha256: dict[str, str]
    """Of each file beside the card."""
    token_ratio: Annotated[float, msgspec.Meta(gt=0)]
    """Tokens of the served model per token of this one's tokenizer, measured when it was made."""


class LengthModel:
    """Estimates answer lengths. Thread-safe; one prompt takes milliseconds."""

    def __init__(self, session: Any, tokenizer: PromptTokenizer, card: Card) -> None:
        self._session = session
        self._tokenizer = tokenizer
        self._card = card

    @classmethod
    def load(cls, folder: Path | None = None, *, threads: int = 1) -> "LengthModel":
        """The model in `folder`, by default the packaged one.

        Raises UsageError where a file is missing or not the card's.
        """
        folder = folder or PACKAGED
        card = _read_card(folder)
        session = _session(folder / MODEL_FILE, threads)
        return cls(session, PromptTokenizer.load(folder / TOKENIZER_FILE), card)

    @property
    def name(self) -> str:
        return self._card.name

    @property
    def providers(self) -> Sequence[str]:
        """What is really bound: a GPU that was asked for may be missing without an error."""
        providers: Sequence[str] = self._session.get_providers()
        return providers

    def estimate(self, prompts: Sequence[str]) -> npt.NDArray[np.float64]:
        """p10, p50, p90 of each answer's tokens, [n, 3], in order, at least 1.

        One by one: int8 scales are taken over a whole batch, so a batch would let prompts change
        each other's estimates, and on a CPU it is no faster.
        """
        rows = [self._run(self._tokenizer.tokens(prompt).ids) for prompt in prompts]
        return np.concatenate(rows) if rows else np.empty((0, 3))

    def estimate_one(self, prompt: str) -> tuple[int, tuple[float, float, float]]:
        """Prompt tokens of the served model, and p10, p50, p90 of its answer's."""
        tokens = self._tokenizer.tokens(prompt)
        p10, p50, p90 = (float(value) for value in self._run(tokens.ids)[0])
        return self._scaled(tokens.counted), (p10, p50, p90)

    def count_tokens(self, prompt: str) -> int:
        """About how many tokens the served model makes of the prompt."""
        return self._scaled(self._tokenizer.tokens(prompt).counted)

    def _scaled(self, counted: int) -> int:
        return max(1, round(counted * self._card.token_ratio))

    def _run(self, ids: list[int]) -> npt.NDArray[np.float64]:
        input_ids, mask = batch([ids], self._tokenizer.pad)
        (quantiles,) = self._session.run(
            ["quantiles"], {"input_ids": input_ids, "attention_mask": mask}
        )
        return np.maximum.accumulate(
            np.maximum(np.expm1(quantiles.astype(np.float64)), 1.0), axis=1
        )


def _read_card(folder: Path) -> Card:
    try:
        card = msgspec.json.decode((folder / CARD_FILE).read_bytes(), type=Card)
    except FileNotFoundError:
        raise UsageError(f"length model {folder}: {CARD_FILE} is missing") from None
    except msgspec.DecodeError as error:
        raise UsageError(f"length model {folder}: {CARD_FILE}: {error}") from error
    for name in (MODEL_FILE, TOKENIZER_FILE):
        path = folder / name
        if not path.is_file():
            raise UsageError(f"length model {folder}: {name} is missing")
        if card.sha256.get(name) != file_hash(path):
            raise UsageError(f"length model {folder}: {name} is not the file of the card")
    return card


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _session(path: Path, threads: int) -> Any:
    try:
        import onnxruntime as ort
    except ImportError:
        raise UsageError(
            "onnxruntime is missing: pip install 'astrolabe[onnx]' (or [onnx-gpu], never both)"
        ) from None
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # A thread that spins while it waits would take the cores of everybody else.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    available = ort.get_available_providers()
    wanted = [provider for provider in PROVIDERS if provider in available]
    try:
        return ort.InferenceSession(str(path), options, providers=wanted)
    except Exception as error:  # onnxruntime's own errors have no common base to name
        raise UsageError(f"length model {path}: {error}") from error
