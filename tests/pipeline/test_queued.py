"""The headers of a dispatched request: what goes in comes out, and nothing else is believed."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.messages import LengthEstimate, Probe, TaggedRequest
from pipeline.queued import queued_headers, queued_of, read_queued
from pipeline.subjects import Header


def tagged(prompt_tokens: int, max_tokens: int | None, p50: float) -> TaggedRequest:
    return TaggedRequest(
        id="r",
        client="c",
        model="default",
        request=msgspec.Raw(b"{}"),
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        estimate=LengthEstimate(p10=p50 / 2, p50=p50, p90=2 * p50, source="test"),
        deadline_at_ms=0.0,
    )


@given(st.integers(0, 10**6), st.none() | st.integers(1, 10**6), st.floats(0, 1e6))
def test_there_and_back(prompt_tokens: int, max_tokens: int | None, p50: float) -> None:
    request = tagged(prompt_tokens, max_tokens, p50)
    there = read_queued(queued_headers(request))
    assert there is not None
    here = queued_of(request)
    assert (there.key, there.prompt_tokens, there.max_tokens) == (
        "c.r",
        prompt_tokens,
        here.max_tokens,
    )
    assert there.p50 == pytest.approx(p50, rel=1e-4)


@pytest.mark.parametrize(("max_tokens", "tokens"), [(None, 350), (100, 200), (900, 350)])
def test_what_it_commits(max_tokens: int | None, tokens: float) -> None:
    assert queued_of(tagged(100, max_tokens, 250.0)).committed_tokens == tokens
    probe = Probe(
        key="c.r",
        prompt_tokens=100,
        max_tokens=max_tokens,
        estimate=LengthEstimate(p10=1, p50=250.0, p90=900, source="test"),
    )
    assert queued_of(probe).committed_tokens == tokens


@pytest.mark.parametrize(
    "wrong",
    [
        {Header.PROMPT_TOKENS: "-1"},
        {Header.PROMPT_TOKENS: str(1 << 32)},
        {Header.PROMPT_TOKENS: "many"},
        {Header.MAX_TOKENS: "-1"},
        {Header.MAX_TOKENS: str(1 << 40)},
        {Header.ESTIMATE: "1,2"},
        {Header.ESTIMATE: "1,2,3,4"},
        {Header.ESTIMATE: "1,nan,3"},
        {Header.ESTIMATE: "1,inf,3"},
        {Header.ESTIMATE: "-1,2,3"},
    ],
)
def test_other_headers_are_none(wrong: dict[str, str]) -> None:
    headers = queued_headers(tagged(10, None, 20.0))
    assert read_queued(headers | wrong) is None
    for name in wrong:
        assert read_queued({k: v for k, v in headers.items() if k != name}) is None
    assert read_queued({}) is None
