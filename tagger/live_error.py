"""How wrong the estimates were, answer by answer, and what is done about it.

Every tagger hears every end on `finished.…`, so all learn alike and none has anything to lose. A
model that is served here writes longer or shorter than those that the length model was trained on,
and orders prompts much alike: one factor a served model brings the level right.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from math import exp, log1p

import numpy as np

from pipeline.bus import Message
from pipeline.metrics import LENGTH_BIAS, LENGTH_CORRECTION, LENGTH_ERROR, LENGTH_EVIDENCE
from pipeline.subjects import Header

MODELS_MAX = 32
REMEMBERED_MAX = 512
TELL_EVERY = 16
WINDOW = 250
"""Answers after which an older one has lost most of its weight."""
PRIOR_ANSWERS = 50
"""The weight, in answers, of the belief that the model needs no correction."""
RATIO_MAX = 2.0
"""Of one answer, as a logarithm: a freak counts no more."""
FACTOR_MAX = 4.0


@dataclass(slots=True)
class _Known:
    """Of one served model."""

    log_ratios: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED_MAX))
    """ln(actual / uncorrected estimate), newest last."""
    answers: int = 0
    level: float = 0.0
    """Their slowly moving mean, drawn towards 0 while they are few."""


class LiveError:
    """Errors and corrections by served model, of the estimates that `source` made. One that
    `corrects` not only tells how wrong they are: a median of the answers corrects itself."""

    def __init__(self, source: str, *, corrects: bool = True) -> None:
        self._source = source
        self._corrects = corrects
        self._models: OrderedDict[str, _Known] = OrderedDict()

    def finished(self, message: Message) -> None:
        """One end. Only those that tell of their estimate have the headers for it."""
        headers = message.headers
        if headers.get(Header.ESTIMATE_SOURCE) != self._source:
            return
        model = headers.get(Header.MODEL, "")
        estimated = _positive(headers.get(Header.ESTIMATE, ""))
        actual = _positive(headers.get(Header.COMPLETION_TOKENS, ""))
        if model and estimated and actual:
            self._learn(model, log1p(actual) - log1p(estimated))

    def correction(self, model: str) -> float:
        """What to multiply the estimates for this served model with."""
        known = self._models.get(model)
        if known is None or not self._corrects:
            return 1.0
        return min(FACTOR_MAX, max(1 / FACTOR_MAX, exp(known.level)))

    def _learn(self, model: str, log_ratio: float) -> None:
        known = self._models.get(model)
        if known is None:
            known = self._models[model] = _Known()
            if len(self._models) > MODELS_MAX:
                self._forget(next(iter(self._models)))
        self._models.move_to_end(model)
        known.log_ratios.append(log_ratio)
        known.answers += 1
        bounded = min(RATIO_MAX, max(-RATIO_MAX, log_ratio))
        known.level += (bounded - known.level) / min(WINDOW, known.answers + PRIOR_ANSWERS)
        if known.answers % TELL_EVERY == 0:
            self._tell(model, known)

    def _tell(self, model: str, known: _Known) -> None:
        left = np.array(known.log_ratios) - np.log(self.correction(model))
        LENGTH_ERROR.labels(model).set(float(np.median(np.abs(left))))
        LENGTH_BIAS.labels(model).set(float(np.median(left)))
        LENGTH_CORRECTION.labels(model).set(self.correction(model))
        LENGTH_EVIDENCE.labels(model).set(known.answers)

    def _forget(self, model: str) -> None:
        """The one that was silent for longest, and its gauges with it."""
        told = self._models.pop(model).answers >= TELL_EVERY
        if told:
            for gauge in (LENGTH_ERROR, LENGTH_BIAS, LENGTH_CORRECTION, LENGTH_EVIDENCE):
                gauge.remove(model)


def _positive(text: str) -> float | None:
    """A finite number above 0, or None: headers come from outside."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < 1e9 else None
