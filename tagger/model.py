"""The length model as it is served: an ONNX file, its tokenizer, its card. No torch here."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.errors import UsageError
from pipeline.messages import ChatMessage
from tagger.conversation import Conversation, conversation_of, features
from tagger.text import TAIL_TOKENS, TEXT_TOKENS_MAX, PromptTokenizer, batch

PACKAGED = Path(__file__).parent / "model"
MODEL_FILE, TOKENIZER_FILE, CARD_FILE = "model.onnx", "tokenizer.json", "card.json"
FRAME_TOKENS = 4
"""What usual chat templates put around a message."""
PROVIDERS = ["CUDAExecutionProvider", "CPUExecutionProvider"]


class Card(msgspec.Struct, frozen=True):
    """What serving needs of the model card."""

    name: str
    sha256: dict[str, str]
    """Of each file beside the card."""
    token_ratio: Annotated[float, msgspec.Meta(gt=0)]
    """Tokens of the served model per token of this one's tokenizer, measured when it was made."""
    tail_tokens: Annotated[int, msgspec.Meta(ge=0, le=TEXT_TOKENS_MAX)] = TAIL_TOKENS
    """Of a long prompt's end, as in its training."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One prompt as the model takes it."""

    ids: list[int]
    features: list[float]
    prompt_tokens: int
    """About how many tokens the served model makes of all that the engine reads."""


class LengthModel:
    """Estimates answer lengths. Thread-safe; one prompt takes milliseconds."""

    def __init__(self, session: Any, tokenizer: PromptTokenizer, card: Card) -> None:
        self._session = session
        self._tokenizer = tokenizer
        self._card = card
        self._inputs = [one.name for one in session.get_inputs()]
        """A model that was trained without the conversation does not take it."""

    @classmethod
    def load(cls, folder: Path | None = None, *, threads: int = 1) -> "LengthModel":
        """The model in `folder`, by default the packaged one.

        Raises UsageError where a file is missing or not the card's.
        """
        folder = folder or PACKAGED
        card = _read_card(folder)
        session = _session(folder / MODEL_FILE, threads)
        tokenizer = PromptTokenizer.load(folder / TOKENIZER_FILE, card.tail_tokens)
        return cls(session, tokenizer, card)

    @property
    def name(self) -> str:
        return self._card.name

    @property
    def providers(self) -> Sequence[str]:
        """What is really bound: a GPU that was asked for may be missing without an error."""
        providers: Sequence[str] = self._session.get_providers()
        return providers

    def read(self, prompt: str, conversation: Conversation | None = None) -> Reading:
        """A bare prompt, with what is known of the conversation before it."""
        tokens = self._tokenizer.tokens(prompt)
        before = 0 if conversation is None else conversation.context_tokens
        return Reading(tokens.ids, features(conversation), self._scaled(tokens.counted) + before)

    def read_chat(self, messages: Sequence[ChatMessage]) -> Reading:
        """A chat: the model reads its last message, and how long what came before it was."""
        counts = [self.count_tokens(message.content) for message in messages]
        tokens = self._tokenizer.tokens(messages[-1].content)
        conversation = conversation_of(messages, counts)
        framed = sum(counts) + FRAME_TOKENS * len(messages)
        return Reading(tokens.ids, features(conversation), framed)

    def estimate(self, readings: Sequence[Reading]) -> npt.NDArray[np.float64]:
        """p10, p50, p90 of each answer's tokens, [n, 3], in order, at least 1; in one batch.

        Where scales are taken over a whole batch, as dynamic int8 does, a batch lets prompts
        change each other's estimates a little: one at a time, then.
        """
        if not readings:
            return np.empty((0, 3))
        input_ids, mask = batch([reading.ids for reading in readings], self._tokenizer.pad)
        known = np.array([reading.features for reading in readings], dtype=np.float32)
        given = {"input_ids": input_ids, "attention_mask": mask, "features": known}
        (quantiles,) = self._session.run(
            ["quantiles"], {name: given[name] for name in self._inputs}
        )
        return np.maximum.accumulate(
            np.maximum(np.expm1(quantiles.astype(np.float64)), 1.0), axis=1
        )

    def estimate_one(
        self, prompt: str, conversation: Conversation | None = None
    ) -> tuple[float, float, float]:
        """p10, p50, p90 of one answer's tokens."""
        p10, p50, p90 = self.estimate([self.read(prompt, conversation)])[0]
        return float(p10), float(p50), float(p90)

    def count_tokens(self, text: str) -> int:
        """About how many tokens the served model makes of the text."""
        return self._scaled(self._tokenizer.tokens(text).counted)

    def _scaled(self, counted: int) -> int:
        return max(1, round(counted * self._card.token_ratio))


def both_runtimes_installed() -> bool:
    """onnxruntime and onnxruntime-gpu install the same folder: what runs is a matter of luck."""
    return all(_installed(name) for name in ("onnxruntime", "onnxruntime-gpu"))


def _installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


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
