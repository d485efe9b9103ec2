"""The load of the live part: seeded prompts and lengths, Poisson arrivals."""

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
ON_BOTH_EVERY = 5


def make(count: int, rate: float, seed: int) -> list[Asked]:
    """`count` requests, `rate` a second on average; one in ON_BOTH_EVERY is run on both instances.

    Prompts are counted by the engine's own tokenizer. Every prompt begins differently, so that no
    prefix cache helps.
    """
    rng = Random(seed)
    tokenizer = Tokenizer.from_file(str(TINY_LLAMA / "tokenizer.json"))
    requests, at_s = [], 0.0
    for number in range(count):
        words = [
            f"{rng.randrange(10**6)}",
            *rng.choices(WORDS.split(), k=rng.randint(*PROMPT_WORDS)),
        ]
        prompt = " ".join(words)
        requests.append(
            Asked(
                at_s,
                prompt,
                len(tokenizer.encode(prompt).ids),
                rng.randint(*TOKENS),
                on_both=number % ON_BOTH_EVERY == 0,
            )
        )
        at_s += rng.expovariate(rate)
    return requests
