"""Engines in the middle of their work, and newcomers to them, with ShareGPT-like lengths.

Two kinds: `drawn`, with so many running and waiting, each caught somewhere in its answer; and
`under_load`, where one engine with the published A30's pool is run step by step under Poisson
arrivals and looked at now and then. Near saturation it is short of blocks and preempts.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from pipeline.messages import EngineLimits, LengthEstimate, Phase, Probe, RequestState
from predictor.scheduler import Scheduler, Sequence
from predictor.step_time import DEFAULT_PROFILE, LIMITS, PROFILES, step_ms

NEWCOMERS = 25
"""For each state."""
PROMPT_MEDIAN, PROMPT_SIGMA = 35, 1.4
ANSWER_MEDIAN, ANSWER_SIGMA = 286, 0.9
TOKENS_MAX = 2048
QUANTILE_RATIO = 3
"""Of p90 to p50, and of p50 to p10."""
ESTIMATE_SIGMA = 0.5
"""Of the median estimate about the answer."""
PUBLISHED = LIMITS[DEFAULT_PROFILE]
STEP_TIME = PROFILES[DEFAULT_PROFILE]
WARM_UP_MS = 40_000.0
"""More than nearly any answer takes."""
BETWEEN_MS = 700.0
"""On average, from one look to the next."""
SGLANG_CHUNK_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Case:
    """An engine's state, and what comes to it."""

    limits: EngineLimits
    requests: list[RequestState]
    newcomers: list[Probe]


def drawn(running: int, waiting: int, seed: int, *, blocks: float = 1.0) -> Case:
    """Seeded. `blocks`: the pool's share of a thousand tokens for every running request."""
    rng = random.Random(seed)
    requests, held = [], 0
    for number in range(running + waiting):
        prompt, answer = _prompt(rng), _answer(rng)
        generated = rng.randint(1, answer - 1) if number < running else 0
        phase: Phase = "decoding" if number < running else "waiting"
        computed = prompt + generated - 1 if number < running else 0
        requests.append(_state(f"client.{number}", phase, prompt, generated, answer, computed))
        held = max(held, prompt + answer)
    size = PUBLISHED.block_size
    # With 1,000 tokens a place nobody is preempted; the published 1,052 blocks for 48 places are
    # a third of that.
    pool = int(blocks * max(1, running) * 1000 / size)
    limits = EngineLimits(
        rules="vllm",
        block_size=size,
        kv_blocks=max(pool, 2 * held // size),
        max_num_seqs=max(48, running),
        max_num_batched_tokens=PUBLISHED.max_num_batched_tokens,
        max_model_len=PUBLISHED.max_model_len,
    )
    return Case(limits, requests, _newcomers(rng))


def by_sglang(case: Case) -> Case:
    """The same state of an engine with the same pool and SGLang's rules."""
    limits = case.limits
    own = replace(
        limits,
        rules="sglang",
        block_size=1,
        kv_blocks=limits.kv_blocks * limits.block_size,
        max_num_batched_tokens=SGLANG_CHUNK_TOKENS,
    )
    return Case(own, case.requests, case.newcomers)


def under_load(rate: float, states: int, seed: int) -> list[Case]:
    """Seeded. `rate`: requests per second that come to the one engine."""
    rng = random.Random(seed)
    scheduler = Scheduler(PUBLISHED)
    estimates: dict[str, float] = {}
    cases: list[Case] = []
    arrivals = _arrivals(rng, rate)
    now_ms, due_ms, look_ms = 0.0, next(arrivals), WARM_UP_MS
    while len(cases) < states:
        while due_ms <= now_ms:
            prompt, key = _prompt(rng), f"client.{len(estimates)}"
            answer = min(_answer(rng), scheduler.room(prompt))
            estimates[key] = answer * rng.lognormvariate(0, ESTIMATE_SIGMA)
            scheduler.add(Sequence(key, prompt, answer))
            due_ms = next(arrivals)
        if not len(scheduler):
            now_ms = due_ms
            continue
        plan = scheduler.step()
        now_ms += step_ms(STEP_TIME, plan.load)
        scheduler.complete(plan)
        if now_ms >= look_ms:
            cases.append(Case(PUBLISHED, list(_ledger(scheduler, estimates)), _newcomers(rng)))
            look_ms = now_ms + rng.expovariate(1 / BETWEEN_MS)
    return cases


def _arrivals(rng: random.Random, rate: float) -> Iterator[float]:
    at_ms = 0.0
    while True:
        at_ms += rng.expovariate(rate / 1000)
        yield at_ms


def _ledger(scheduler: Scheduler, estimates: dict[str, float]) -> Iterator[RequestState]:
    """What the engine's worker would report."""
    for sequence in scheduler.running:
        phase: Phase = "decoding" if sequence.decoding else "prefilling"
        yield _state_of(sequence, phase, estimates)
    for sequence in scheduler.waiting:
        yield _state_of(sequence, "preempted" if sequence.generated else "waiting", estimates)


def _state_of(sequence: Sequence, phase: Phase, estimates: dict[str, float]) -> RequestState:
    return _state(
        sequence.key, phase, sequence.prompt_tokens, sequence.generated,
        estimates[sequence.key], sequence.computed,
    )  # fmt: skip


def _state(
    key: str, phase: Phase, prompt: int, generated: int, estimate: float, computed: int
) -> RequestState:
    return RequestState(
        key=key,
        phase=phase,
        prompt_tokens=prompt,
        computed_tokens=computed,
        generated_tokens=generated,
        max_tokens=TOKENS_MAX,
        p10=estimate / QUANTILE_RATIO,
        p50=estimate,
        p90=estimate * QUANTILE_RATIO,
    )


def _newcomers(rng: random.Random) -> list[Probe]:
    probes = []
    for number in range(NEWCOMERS):
        answer = _answer(rng)
        estimate = LengthEstimate(
            p10=answer / QUANTILE_RATIO, p50=answer, p90=answer * QUANTILE_RATIO, source="test"
        )
        probes.append(Probe(key=f"new.{number}", prompt_tokens=_prompt(rng), estimate=estimate))
    return probes


def _prompt(rng: random.Random) -> int:
    return max(1, min(1500, round(rng.lognormvariate(0, PROMPT_SIGMA) * PROMPT_MEDIAN)))


def _answer(rng: random.Random) -> int:
    return max(2, min(TOKENS_MAX, round(rng.lognormvariate(0, ANSWER_SIGMA) * ANSWER_MEDIAN)))
