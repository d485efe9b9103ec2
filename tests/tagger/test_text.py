"""What the model reads of a prompt: a head, a tail, and never too much."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tagger.model import PACKAGED, TOKENIZER_FILE
from tagger.text import CHARS_READ_MAX, TOKENS_MAX, PromptTokenizer, batch

TOKENIZER = PromptTokenizer.load(PACKAGED / TOKENIZER_FILE)


def test_a_short_prompt_is_read_whole() -> None:
    tokens = TOKENIZER.tokens("Why is the sky blue?")
    assert len(tokens.ids) == tokens.counted + 2


def test_a_long_prompt_keeps_its_head_and_its_tail() -> None:
    words = [f"word{number}" for number in range(500)]
    long = TOKENIZER.tokens(" ".join(words))
    assert len(long.ids) == TOKENS_MAX
    head = TOKENIZER.tokens(" ".join(words[:10])).ids[1:-1]
    tail = TOKENIZER.tokens(" ".join(words[-5:])).ids[1:-1]
    assert long.ids[1 : 1 + len(head)] == head
    assert long.ids[-1 - len(tail) : -1] == tail


@pytest.mark.parametrize(("tail_tokens", "ends"), [(0, False), (40, True), (126, True)])
@pytest.mark.parametrize("words", [500, 20_000])
def test_the_tail_is_as_long_as_in_training(tail_tokens: int, ends: bool, words: int) -> None:
    reader = PromptTokenizer.load(PACKAGED / TOKENIZER_FILE, tail_tokens)
    first, last = reader.tokens("water fire").ids[1:3], reader.tokens("house tree").ids[1:3]
    ids = reader.tokens(f"water fire {'lorem ' * words} house tree").ids
    assert len(ids) == TOKENS_MAX
    assert (ids[1:3] == first) == (tail_tokens < 126)
    assert (ids[-3:-1] == last) == ends


@pytest.mark.parametrize(
    "prompt",
    ["", "\x00" * 10, "🦊" * 300, "\ud800 lone \udfff surrogates", "a", " \n\t ", "é" * 5000],
)
def test_odd_prompts_are_read(prompt: str) -> None:
    tokens = TOKENIZER.tokens(prompt)
    assert 2 <= len(tokens.ids) <= TOKENS_MAX


@settings(max_examples=200)
@given(st.text(st.characters(), max_size=2000))
def test_any_text_is_read_within_the_bound(prompt: str) -> None:
    tokens = TOKENIZER.tokens(prompt)
    assert 2 <= len(tokens.ids) <= TOKENS_MAX
    assert tokens.counted >= 0


def test_a_megabyte_is_counted_from_its_ends() -> None:
    page, megabyte = "lorem ipsum " * (CHARS_READ_MAX // 6), "lorem ipsum " * 87_000
    whole = len(megabyte) / len(page) * TOKENIZER.tokens(page).counted
    assert TOKENIZER.tokens(megabyte).counted == pytest.approx(whole, rel=0.05)


def test_of_a_megabyte_only_the_ends_are_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = PromptTokenizer._read

    def noted(self: PromptTokenizer, text: str) -> tuple[list[int], int]:
        read.append(len(text))
        return original(self, text)

    monkeypatch.setattr(PromptTokenizer, "_read", noted)
    TOKENIZER.tokens("lorem ipsum " * 87_000)
    assert sum(read) == 2 * CHARS_READ_MAX


@pytest.mark.parametrize("prompt", ["Zm9v" * 600, "Zm9v" * 200_000, "ᚠᚢᚦ" * 300])
def test_words_outside_the_vocabulary_count_by_their_bytes(prompt: str) -> None:
    # One unknown token each for the model, hundreds for the one that answers.
    bytes_per_token = len(prompt.encode()) / TOKENIZER.tokens(prompt).counted
    assert 2 < bytes_per_token < 4


def test_padding_is_masked() -> None:
    ids, mask = batch([[5, 6, 7], [8]], pad=0)
    assert ids.tolist() == [[5, 6, 7], [8, 0, 0]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0]]
