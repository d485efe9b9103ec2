"""What is sent: the same seeded requests at the same seeded times, whoever is in front.

Prompts and answers have log-normal lengths, no two prompts share a beginning, and an answer's
length is fixed by `max_tokens` with `ignore_eos`, so that every engine does the same work whatever
placed it there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.load import arrival_offsets_s
from pipeline.messages import ChatMessage
from predictor.scheduler import Scheduler
from predictor.scheduler import Sequence as EngineSequence
from predictor.step_time import PROFILES
from workers.simulated_answer import Words
from workers.simulated_settings import SimulatedSettings
from workers.simulated_time import TrueStepTime

CAPACITY_REQUESTS = 2_000
CAPACITY_SEED = 7


@dataclass(frozen=True, slots=True)
class Lengths:
    """A log-normal number of tokens, cut off at `most`."""

    median: float
    sigma: float
    most: int

    def draw(self, rng: np.random.Generator, count: int) -> list[int]:
        drawn = np.round(self.median * rng.lognormal(0.0, self.sigma, count))
        return [int(tokens) for tokens in np.clip(drawn, 1, self.most)]


PROMPTS = Lengths(median=100, sigma=0.7, most=1_000)
ANSWERS = Lengths(median=60, sigma=1.0, most=600)
SHORT_PROMPTS = Lengths(median=20, sigma=0.3, most=60)
SHORT_ANSWERS = Lengths(median=8, sigma=0.0, most=8)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request and when it is due, in seconds from the start of its run."""

    id: str
    at_s: float
    messages: tuple[ChatMessage, ...]
    prompt_tokens: int
    """About; each side counts for itself."""
    answer_tokens: int


def arrivals(
    run: str,
    rate: float,
    seconds: float,
    seed: int,
    *,
    prompts: Lengths = PROMPTS,
    answers: Lengths = ANSWERS,
) -> list[Arrival]:
    """Poisson arrivals of one run, at least one. The same seed gives the same, but for the ids,
    which begin with `run`."""
    count = max(1, round(rate * seconds))
    rng = np.random.default_rng(seed)
    lengths = zip(prompts.draw(rng, count), answers.draw(rng, count), strict=True)
    offsets = arrival_offsets_s(count, rate, seed)
    return [
        arrival(f"{run}-{number}", at_s, prompt_tokens, answer_tokens, text_seed=f"{seed}-{number}")
        for number, (at_s, (prompt_tokens, answer_tokens)) in enumerate(
            zip(offsets, lengths, strict=True)
        )
    ]


def arrival(
    request_id: str, at_s: float, prompt_tokens: int, answer_tokens: int, *, text_seed: str
) -> Arrival:
    """One request; its prompt begins with its own seed, so that no two share a beginning."""
    text = f"{text_seed}: {Words(text_seed).take(prompt_tokens)}"
    message = ChatMessage(role="user", content=text)
    return Arrival(request_id, at_s, (message,), prompt_tokens, answer_tokens)


def alone_ms(arrival: Arrival, settings: SimulatedSettings) -> float:
    """E2E of the request alone on an idle engine of these settings, in ms, without noise."""
    return _run(settings, [arrival])[0]


def capacity(settings: SimulatedSettings) -> float:
    """Requests of this workload a second that one engine of these settings can keep up with.

    Measured on the engine's own scheduler and step times, with always somebody waiting.
    """
    rng = np.random.default_rng(CAPACITY_SEED)
    prompts = PROMPTS.draw(rng, CAPACITY_REQUESTS)
    answers = ANSWERS.draw(rng, CAPACITY_REQUESTS)
    many = [
        Arrival(str(number), 0.0, (), prompt_tokens, answer_tokens)
        for number, (prompt_tokens, answer_tokens) in enumerate(zip(prompts, answers, strict=True))
    ]
    took_ms, tokens = _run(settings, many, until_none_waits=True)
    return tokens / float(np.mean(answers)) / (took_ms / 1000)


def _run(
    settings: SimulatedSettings, requests: Sequence[Arrival], *, until_none_waits: bool = False
) -> tuple[float, int]:
    """Virtual time in ms and tokens generated, of all requests or until the last was admitted."""
    scheduler = Scheduler(settings.limits())
    step_time = TrueStepTime(
        PROFILES[settings.profile], overhead_ms=settings.overhead_ms, noise=0, seed=0
    )
    for request in requests:
        scheduler.add(EngineSequence(request.id, request.prompt_tokens, request.answer_tokens))
    took_ms, tokens = 0.0, 0
    while len(scheduler) and not (until_none_waits and not scheduler.waiting):
        plan = scheduler.step()
        took_ms += step_time.next_ms(plan.load)
        tokens += len(scheduler.complete(plan))
    return took_ms * settings.time_scale, tokens
