import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import BadRequest, UsageError
from pipeline.subjects import Subjects, check_token, last_tokens, model_slug, valid_token


def test_the_slug_of_a_real_name() -> None:
    assert model_slug("meta-llama/Llama-3.1-8B") == "meta-llama_Llama-3_1-8B"


@given(st.text(min_size=1, max_size=64))
def test_a_slug_is_always_one_harmless_token(name: str) -> None:
    slug = model_slug(name)
    assert valid_token(slug)
    assert not set(slug) & set(".*> \t\r\n")


@pytest.mark.parametrize("text", ["", "a.b", "*", ">", "a b", "x" * 65, "ä", "a\n", "$JS"])
def test_what_may_not_be_a_token(text: str) -> None:
    with pytest.raises(BadRequest, match="client"):
        check_token(text, "client")


@pytest.mark.parametrize("prefix", ["", "Astro", "a.b", "1a", "a_b", "x" * 33])
def test_a_wrong_prefix_is_named(prefix: str) -> None:
    with pytest.raises(UsageError, match="prefix"):
        Subjects(prefix)


def test_the_last_tokens_of_a_subject() -> None:
    assert last_tokens(Subjects("x").inbox("gpu0", "b1"), 2) == ["gpu0", "b1"]
