"""What answers teach about the estimates: slowly, within bounds, and from good evidence alone."""

import random

import pytest
from prometheus_client import REGISTRY

from pipeline.bus import Message
from pipeline.conclusion import _result_headers
from pipeline.messages import LengthEstimate, Result, Usage
from pipeline.subjects import Header
from tagger.live_error import FACTOR_MAX, MODELS_MAX, LiveError
from tests.tagger.questions import ended


def gauge(name: str, model: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"model": model})


def test_a_model_that_writes_longer_is_followed() -> None:
    live, rng = LiveError("fake"), random.Random(0)
    for _ in range(600):
        estimate = rng.uniform(20, 600)
        live.finished(ended(round(3 * estimate * rng.lognormvariate(0, 0.5)), estimate))
    assert live.correction("m") == pytest.approx(3, rel=0.15)
    bias = gauge("astrolabe_length_bias", "m")
    assert bias is not None and abs(bias) < 0.15, "of what is left after the correction"
    assert gauge("astrolabe_length_evidence", "m") == 592


def test_a_few_answers_move_little() -> None:
    live = LiveError("fake")
    for _ in range(5):
        live.finished(ended(1_000, 100))
    assert 1 < live.correction("m") < 1.3


def test_what_corrects_itself_is_judged_as_it_is() -> None:
    live = LiveError("fake", corrects=False)
    for _ in range(64):
        live.finished(ended(200, 100, model="by-median"))
    assert live.correction("by-median") == 1.0
    assert gauge("astrolabe_length_correction", "by-median") == 1.0
    assert gauge("astrolabe_length_bias", "by-median") == pytest.approx(0.69, abs=0.01)


def test_the_correction_is_bounded() -> None:
    live = LiveError("fake")
    for _ in range(2_000):
        live.finished(ended(1_000_000, 1))
    assert live.correction("m") == FACTOR_MAX
    for _ in range(4_000):
        live.finished(ended(1, 1_000_000))
    assert live.correction("m") == 1 / FACTOR_MAX


@pytest.mark.parametrize(
    "message",
    [
        ended(1_000, 100, source="another"),
        ended(1_000, None),
        Message("s", b"", {}),
        Message("s", b"", {Header.ESTIMATE_SOURCE: "fake", Header.ESTIMATE: "nan"}),
        Message(
            "s",
            b"",
            {
                Header.ESTIMATE_SOURCE: "fake",
                Header.MODEL: "m",
                Header.ESTIMATE: "inf",
                Header.COMPLETION_TOKENS: "-1",
            },
        ),
    ],
)
def test_what_is_no_evidence_teaches_nothing(message: Message) -> None:
    live = LiveError("fake")
    for _ in range(100):
        live.finished(message)
    assert live.correction("m") == 1.0


def test_models_are_bounded_and_their_gauges_go_with_them() -> None:
    live = LiveError("fake")
    for number in range(MODELS_MAX + 1):
        for _ in range(20):
            live.finished(ended(200, 100, model=f"many-{number}"))
    assert live.correction("many-0") == 1.0
    assert gauge("astrolabe_length_bias", "many-0") is None
    assert gauge("astrolabe_length_bias", f"many-{MODELS_MAX}") is not None


# ------------------------------------------------------------------ what results tell


def result(**changes: object) -> Result:
    fields: dict[str, object] = {
        "id": "r",
        "client": "c",
        "model": "m",
        "status": "done",
        "attempt": 1,
        "finish_reason": "stop",
        "usage": Usage(prompt_tokens=5, completion_tokens=50),
        "estimate": LengthEstimate(p10=10, p50=60, p90=90, source="fake", correction=2.0),
    } | changes
    return Result(**fields)  # type: ignore[arg-type]


def test_an_answer_that_ended_by_itself_tells_the_estimate_without_its_correction() -> None:
    headers = _result_headers(result())
    assert (headers[Header.ESTIMATE], headers[Header.ESTIMATE_SOURCE]) == ("30", "fake")


@pytest.mark.parametrize(
    "changes",
    [
        {"finish_reason": "length"},
        {"estimate": None},
        {"estimate": LengthEstimate(p10=1, p50=2, p90=3, source="fake", capped=True)},
        {"status": "error", "finish_reason": None},
    ],
)
def test_an_answer_that_was_cut_tells_nothing(changes: dict[str, object]) -> None:
    assert Header.ESTIMATE not in _result_headers(result(**changes))
