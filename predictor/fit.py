"""Learns a StepTime from the steps that an engine takes, one step at a time.

Recursive least squares on the relative error, since a step's noise grows with the step. The hinge
is linear on either side of its knee: a step whose tokens are below it says something of
`base + flat`, one above it of `base + token·tokens`; on which side a step lies is read off the
coefficients so far, and the knee moves with them.

Forgetting is additive: every step adds a little uncertainty. (Dividing by a forgetting factor
would blow up what is not observed for a while, as prefill is not in a long decode.) Most of what
is uncertain is **common** to all coefficients, a factor on the engine's whole speed: what decode
steps reveal of it holds for prefill that was not seen yet. When the errors lean to one side for
some steps, the engine's speed has changed, and that factor is opened wide: it is learnt anew from
a handful of steps, and what was known of the proportions stays.
"""

from collections import deque
from math import isfinite, sqrt
from operator import mul
from statistics import median

from pipeline.messages import StepTime
from predictor.step_time import StepLoad

COMMON_SIGMA = 1.0
"""Of the factor on all coefficients at the start: a profile may be a factor of 2 off."""
OWN_SIGMA = 0.5
"""Of each coefficient besides; base and flat against their sum, so that CPU time nobody told of
finds its place."""
COMMON_DRIFT = 5e-4
OWN_DRIFT = 3e-4
"""Added a step, as shares. At 5 % noise the filter then remembers some 100 to 200 steps."""
FORGET_EVERY = 16
CLIP = 3.0
"""Errors count for at most so many of their standard deviations: a stall is no step time."""
NOISE_START, NOISE_MIN, NOISE_MAX = 0.1, 0.01, 0.5
NOISE_GAIN = 0.02
LEAN_GAIN = 0.1
LEAN_MAX = 1.25
"""Running mean of the standardised errors at which the speed counts as changed: 5.5 standard
deviations of that mean itself, and 6 steps in a row that are far off."""
REOPEN_COMMON, REOPEN_OWN = 0.5, 0.1
ERRORS_KEPT = 128
DURATION_MS_MAX = 600_000.0
PREDICTED_TOO_LOW = 100.0
"""A prediction of less than this part of the truth counts as that: it is divided by."""
VARIANCE_MAX = COMMON_SIGMA**2 + OWN_SIGMA**2
TINY = 1e-12
TYPICAL = (1.0, 1.0, 512.0, 512.0 * 256.0, 16_000.0, 48.0)
"""Features of a full step, for the scale of coefficients that start at nothing."""
SHARE_MIN = 0.05
"""Of a step: a coefficient that starts at less may still turn out to be as much."""
KNEE, KNEE_MIN = 96.0, 16.0
"""Tokens. Published GPUs have it at 51 to 104, and the fit finds one that is 4 times off, or 10
where it starts too low. One that starts where no step comes never moves, so it is put here."""
TOKENS_MAX = 512


class OnlineFit:
    """One engine's step time, as far as known. Owned by one task; needs no clock."""

    def __init__(
        self, start: StepTime, *, tokens_max: int = TOKENS_MAX, uncertainty: float = 1.0
    ) -> None:
        """`tokens_max` is the engine's budget of tokens a step. `uncertainty` scales how little
        `start` is believed: 1 for a profile, less for what was fitted to this very engine before.
        Raises ValueError for coefficients of no engine."""
        given = _with_a_knee(check_physical(start), tokens_max)
        whole = given[0] + given[1]
        least = [SHARE_MIN * whole / typical for typical in TYPICAL]
        self._scale = [whole, whole, *map(max, given[2:], least[2:])]
        self._shares = [value / scale for value, scale in zip(given, self._scale, strict=True)]
        """The coefficients in units of their scales: all of the order of 1."""
        self._covariance = [[0.0] * len(given) for _ in given]
        self._open(COMMON_SIGMA * uncertainty, OWN_SIGMA * uncertainty)
        self._noise = NOISE_START
        self._lean = 0.0
        self._errors: deque[float] = deque(maxlen=ERRORS_KEPT)
        self.steps = 0
        """Observed so far."""
        self.changes = 0
        """Times that the speed was taken to have changed."""

    @property
    def coefficients(self) -> StepTime:
        base, flat, token, prefill, context, sequence = map(mul, self._scale, self._shares)
        return StepTime(
            base_ms=base,
            flat_ms=flat,
            token_ms=token,
            prefill_ms=prefill,
            context_ms=context,
            sequence_ms=sequence,
        )

    @property
    def error(self) -> float:
        """Median of the latest steps' relative errors, each as predicted before it was seen."""
        return median(self._errors) if self._errors else 0.0

    @property
    def noise(self) -> float:
        """Estimated standard deviation of one step about its expectation, as a share of it."""
        return self._noise

    def observe(self, load: StepLoad, duration_ms: float) -> bool:
        """One step that the engine took; False, and nothing is learnt, from one that cannot be."""
        if not 0 < duration_ms <= DURATION_MS_MAX:
            return False
        if not (load.tokens >= 1 and load.prefill_work >= 0 and load.context_tokens >= 0):
            return False
        gradient = self._gradient(load)
        predicted = sum(map(mul, gradient, self._shares))
        if not (isfinite(predicted) and load.sequences >= 0):
            return False
        predicted = max(predicted, duration_ms / PREDICTED_TOO_LOW)
        self.steps += 1
        self._errors.append(abs(duration_ms - predicted) / duration_ms)
        if self.steps % FORGET_EVERY == 0:
            forgetting = sqrt(FORGET_EVERY)
            self._open(COMMON_DRIFT * forgetting, OWN_DRIFT * forgetting)
        self._learn([part / predicted for part in gradient], duration_ms / predicted - 1)
        return True

    def _gradient(self, load: StepLoad) -> list[float]:
        """Of a step's duration by the shares, on the load's side of the knee."""
        base, flat, token, prefill, context, sequence = self._scale
        below = flat * self._shares[1] >= token * self._shares[2] * load.tokens
        return [
            base,
            flat if below else 0.0,
            0.0 if below else token * load.tokens,
            prefill * load.prefill_work,
            context * load.context_tokens,
            sequence * load.sequences,
        ]

    def _learn(self, gradient: list[float], error: float) -> None:
        """Both relative to what was predicted."""
        known = [sum(map(mul, row, gradient)) for row in self._covariance]
        noise = self._noise**2
        variance = max(0.0, sum(map(mul, gradient, known))) + noise
        sigma = sqrt(variance)
        error = min(max(error, -CLIP * sigma), CLIP * sigma)
        gain = error / variance
        self._shares = [
            share + gain * part for share, part in zip(self._shares, known, strict=True)
        ]
        halves = [part / sigma for part in known]
        self._covariance = [
            [entry - half * other for entry, other in zip(row, halves, strict=True)]
            for row, half in zip(self._covariance, halves, strict=True)
        ]
        # The expectation of error² is `variance`, so this share of it is the noise alone.
        noise += NOISE_GAIN * (error * gain * noise - noise)
        self._noise = min(max(sqrt(noise), NOISE_MIN), NOISE_MAX)
        self._lean += LEAN_GAIN * (error / sigma - self._lean)
        if abs(self._lean) > LEAN_MAX:
            self._lean = 0.0
            self.changes += 1
            self._open(REOPEN_COMMON, REOPEN_OWN)
        if min(self._shares) < 0:
            self._project()

    def _project(self) -> None:
        """To no coefficient below zero: the likeliest values of the others if it is zero."""
        shares = self._shares
        for _ in shares:
            least = min(shares)
            if least >= 0:
                break
            at = shares.index(least)
            row = self._covariance[at]
            back = least / row[at]
            shares = [share - back * part for share, part in zip(shares, row, strict=True)]
            shares[at] = 0.0
        self._shares = [max(0.0, share) for share in shares]

    def _open(self, common: float, own: float) -> None:
        """Add uncertainty, by a common factor and of every coefficient for itself; but nowhere
        more than at a start. Correlations stay."""
        shares = self._shares
        places = range(len(shares))
        rows = [
            [
                row[j] + common**2 * shares[i] * shares[j] + (own**2 if i == j else 0.0)
                for j in places
            ]
            for i, row in enumerate(self._covariance)
        ]
        shrink = [
            min(1.0, sqrt(VARIANCE_MAX * (1.0 + shares[i] ** 2) / max(rows[i][i], TINY)))
            for i in places
        ]
        self._covariance = [[rows[i][j] * shrink[i] * shrink[j] for j in places] for i in places]


def check_physical(coefficients: StepTime) -> list[float]:
    """Their values in order. Raises ValueError if they are no engine's: a number that is negative
    or not finite, or steps without any cost."""
    c = coefficients
    values = [c.base_ms, c.flat_ms, c.token_ms, c.prefill_ms, c.context_ms, c.sequence_ms]
    if not all(isfinite(value) and value >= 0 for value in values):
        raise ValueError(f"must be finite and not negative: {coefficients}")
    if not 0 < values[0] + values[1] <= DURATION_MS_MAX:
        raise ValueError(f"an empty step costs something, and less than minutes: {coefficients}")
    return values


def _with_a_knee(values: list[float], tokens_max: int) -> list[float]:
    """The same cost of an empty step, with the knee where steps can come."""
    base, flat, token, *others = values
    if KNEE_MIN * token <= flat <= tokens_max * token:
        return values
    flat = flat or base / 2
    return [values[0] + values[1] - flat, flat, flat / min(KNEE, tokens_max), *others]
