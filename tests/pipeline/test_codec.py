"""Every kind of bad body names its field and limit, and never quotes the value."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.codec import decode, encode, readable_id
from pipeline.errors import BadRequest
from pipeline.messages import LengthEstimate, Request, TaggedRequest


@pytest.mark.parametrize(
    ("body", "field", "limit"),
    [
        (b"not json", "body", None),
        (b"\xff\xfe", "body", None),
        (b'["r1"]', "body", None),
        (b'{"prompt":"x"}', "id", None),
        (b'{"id":"a.b","prompt":"x"}', "id", "^[A-Za-z0-9_-]{1,64}$"),
        (b'{"id":"r","prompt":7}', "prompt", None),
        (b'{"id":"r","prompt":"x","max_tokens":-1}', "max_tokens", "1"),
        (b'{"id":"r","prompt":"x","max_tokens":0}', "max_tokens", "1"),
        (b'{"id":"r","prompt":"x","max_tokens":"many"}', "max_tokens", None),
        (b'{"id":"r","prompt":"x","n":2}', "n", "1"),
        (b'{"id":"r","prompt":"x","temperature":3}', "temperature", "2.0"),
        (b'{"id":"r","prompt":"x","priority":101}', "priority", "100"),
        (b'{"id":"r","prompt":"x","deadline_ms":0}', "deadline_ms", "1"),
        (b'{"id":"r","prompt":"x","on_disconnect":"panic"}', "on_disconnect", None),
        (b'{"id":"r","messages":[]}', "messages", "1"),
        (b'{"id":"r","messages":[{"role":"user"}]}', "messages[0].content", None),
    ],
)
def test_names_the_field_and_the_limit(body: bytes, field: str, limit: str | None) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(body, Request)
    assert caught.value.field == field
    assert caught.value.limit == limit
    assert field in caught.value.message or field == "body"


def test_a_deeply_nested_body_is_refused() -> None:
    with pytest.raises(BadRequest):
        decode(b'{"id":"r","prompt":"x","extra":' + b"[" * 200_000, Request)


def test_unknown_fields_are_ignored() -> None:
    assert decode(b'{"id":"r","prompt":"x","invented":{"a":1}}', Request).id == "r"


def test_the_value_is_never_quoted() -> None:
    with pytest.raises(BadRequest) as caught:
        decode(b'{"id":"r","prompt":"x","stop":"' + b"secret" * 100 + b'"}', Request)
    assert "secret" not in caught.value.message


def test_the_id_of_a_bad_body_is_read_where_it_can_be() -> None:
    assert readable_id(b'{"id":"r1","max_tokens":-1}') == "r1"
    assert readable_id(b'{"id":"r.1"}') is None
    assert readable_id(b"nonsense") is None


@given(st.binary(max_size=300))
def test_any_bytes_decode_or_are_refused(body: bytes) -> None:
    try:
        decode(body, Request)
    except BadRequest as error:
        assert error.field


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)


@given(prompt=texts, tokens=st.integers(1, 1_048_576) | st.none(), key=texts)
def test_a_tagged_request_carries_the_body_untouched(
    prompt: str, tokens: int | None, key: str
) -> None:
    body = encode(Request(id="r", prompt=prompt, max_tokens=tokens, metadata={"k": key}))
    tagged = TaggedRequest(
        id="r",
        client="c",
        model="m",
        request=msgspec.Raw(body),
        prompt_tokens=3,
        max_tokens=tokens,
        estimate=LengthEstimate(p10=1, p50=2, p90=3, source="test"),
        deadline_at_ms=1.5,
    )
    again = decode(encode(tagged), TaggedRequest)
    assert bytes(again.request) == body
    assert decode(bytes(again.request), Request).prompt == prompt
    assert again.estimate == tagged.estimate
