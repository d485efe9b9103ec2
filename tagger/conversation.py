"""What came before the prompt: where a request tells it, it is worth as much as the text.

Long answers follow long answers. A request with `messages` carries its history; one with a bare
`prompt` does not, and then nothing is claimed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.messages import ChatMessage

FEATURES = 4
Features = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is known of a prompt's history; all 0 in a conversation's first turn."""

    turn: int
    """Messages before this prompt, the system's not counted."""
    context_tokens: int
    """Tokens of these messages."""
    previous_tokens: int
    """Of the assistant's last answer among them."""


def features(conversation: Conversation | None) -> list[float]:
    """[FEATURES] numbers of about 1 for the model; zeros where nothing is known."""
    if conversation is None:
        return [0.0] * FEATURES
    turn, context, previous = np.log1p(
        (conversation.turn, conversation.context_tokens, conversation.previous_tokens)
    )
    return [1.0, float(turn) / 3, float(context) / 8, float(previous) / 6]


def conversation_of(messages: Sequence[ChatMessage], counts: Sequence[int]) -> Conversation:
    """The history of a chat's last message; `counts` are the messages' tokens."""
    before = [
        (message.role, count)
        for message, count in zip(messages[:-1], counts[:-1], strict=True)
        if message.role != "system"
    ]
    answers = [count for role, count in before if role == "assistant"]
    return Conversation(
        turn=len(before),
        context_tokens=sum(count for _, count in before),
        previous_tokens=answers[-1] if answers else 0,
    )
