"""What the simulated engine answers: how many tokens, and which words.

Both follow from the prompt alone (the length also from the seed, if the request does not say it),
so every instance answers a prompt alike, also the second time.
"""

import random
from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice

from pipeline.errors import BadRequest
from pipeline.messages import FinishReason, Request

NATURAL_LENGTH_FIELD = "response_tokens"

_DETERMINERS = ("the", "the", "the", "the", "this", "another", "every")
_ADJECTIVES = (
    *("quiet", "careful", "early", "distant", "bright", "narrow", "patient", "familiar"),
    *("steady", "curious", "small", "northern", "simple", "hidden", "gentle", "open"),
)
_NOUNS = (
    *("river", "teacher", "engine", "morning", "window", "question", "garden", "letter"),
    *("harbour", "method", "traveller", "market", "signal", "winter", "bridge", "story"),
    *("planet", "machine", "answer", "village", "instrument", "forest", "road", "map"),
)
_VERBS = (
    *("follows", "explains", "carries", "remembers", "measures", "changes", "reaches"),
    *("describes", "leaves", "holds", "finds", "joins", "watches", "supports", "crosses"),
)
_PREPOSITIONS = ("beside", "beyond", "under", "through", "behind", "near", "without", "after")
_CONNECTIVES = ("and", "but", "because", "while", "so", "although")

SENTENCES_A_PARAGRAPH = 5


def answer_length(
    request: Request, prompt: str, room_tokens: int, *, seed: int, median: float, sigma: float
) -> tuple[int, FinishReason]:
    """Tokens to generate, and how the answer will end. `room_tokens` is what the model has left.

    Raises BadRequest if the request states a natural length that is none.
    """
    limit = min(request.max_tokens or room_tokens, room_tokens)
    if request.ignore_eos:
        return limit, "length"
    stated = (request.metadata or {}).get(NATURAL_LENGTH_FIELD)
    if stated is not None:
        natural = _positive(stated)
    else:
        rng = random.Random(f"{seed}:{_digest(prompt)}")
        natural = max(1, round(median * rng.lognormvariate(0.0, sigma)))
    return (limit, "length") if natural > limit else (natural, "stop")


class Words:
    """The answer's text, made as it is taken. One word, with what goes before it, is one token."""

    def __init__(self, prompt: str) -> None:
        self._pieces = _pieces(random.Random(_digest(prompt)))

    def take(self, tokens: int) -> str:
        """The next `tokens` tokens."""
        return "".join(islice(self._pieces, tokens))


def _pieces(rng: random.Random) -> Iterator[str]:
    before = ""
    while True:
        for _ in range(SENTENCES_A_PARAGRAPH):
            for word in _sentence(rng):
                yield before + word
                before = " "
        before = "\n\n"


def _sentence(rng: random.Random) -> list[str]:
    words = _clause(rng)
    if rng.random() < 0.4:
        words[-1] += ","
        words += [rng.choice(_CONNECTIVES), *_clause(rng)]
    words[0] = words[0].capitalize()
    words[-1] += "."
    return words


def _clause(rng: random.Random) -> list[str]:
    words = [*_thing(rng), rng.choice(_VERBS), *_thing(rng)]
    if rng.random() < 0.4:
        words += [rng.choice(_PREPOSITIONS), *_thing(rng)]
    return words


def _thing(rng: random.Random) -> list[str]:
    adjective = [rng.choice(_ADJECTIVES)] if rng.random() < 0.45 else []
    return [rng.choice(_DETERMINERS), *adjective, rng.choice(_NOUNS)]


def _digest(prompt: str) -> str:
    # "replace": a JSON string may hold half a surrogate pair.
    return blake2b(prompt.encode(errors="replace"), digest_size=16).hexdigest()


def _positive(stated: str) -> int:
    # 9 digits: far more than any model's room, and no work to read.
    if stated.isascii() and stated.isdecimal() and len(stated) <= 9 and int(stated) > 0:
        return int(stated)
    raise BadRequest(
        f"metadata.{NATURAL_LENGTH_FIELD} must be a positive integer, not {stated[:20]!r}",
        field=f"metadata.{NATURAL_LENGTH_FIELD}",
    )
