"""The load of the live part: waves of requests, with seeded prompts, lengths and gaps.

An engine is idle between two waves. So the last requests of a wave have nobody behind them, and
their predictions are judged for what they could know.

The model is a small real one: its steps take tens of milliseconds, so that they decide, as on a
large model, and not what a process needs to hear of them.
"""

from random import Random

from tokenizers import Tokenizer

from engines.folder import TINY_LLAMA
from evaluation.engine.live import Asked

WORDS = (
    "def class return self import value index list string open close read write test name path "
    "error result option module function number count line file data object type key"
)
PROMPT_WORDS = (5, 150)
TOKENS = (10, 120)
GAP_S = 0.15
"""Between two of a wave, on average."""


def make(waves: int, size: int, seed: int) -> list[list[Asked]]:
    """`waves` of `size` requests; the last of each is run on both instances.

    Prompts are counted by the engine's own tokenizer. Every prompt begins differently, so that no
    prefix cache helps.
    """
    rng = Random(seed)
    tokenizer = Tokenizer.from_file(str(TINY_LLAMA / "tokenizer.json"))
    return [_wave(size, rng, tokenizer) for _ in range(waves)]


def _wave(size: int, rng: Random, tokenizer: Tokenizer) -> list[Asked]:
    requests, at_s = [], 0.0
    for number in range(size):
        words = [
            f"{rng.randrange(10**6)}",
            *rng.choices(WORDS.split(), k=rng.randint(*PROMPT_WORDS)),
        ]
        prompt = " ".join(words)
        tokens = len(tokenizer.encode(prompt).ids)
        requests.append(Asked(at_s, prompt, tokens, rng.randint(*TOKENS), number == size - 1))
        at_s += rng.expovariate(1 / GAP_S)
    return requests
