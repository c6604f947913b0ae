"""Text is cleaned once, where it enters."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from persistence.records.text import clean, clean_bytes, clean_value

any_text = st.text(st.characters(exclude_categories=()), max_size=40)
dirty = st.text(st.sampled_from("\x00\ud800\udbff\udc00\udfff\ud83d\ude00a\U0001f600\u05d0"), max_size=12)
good = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=40)
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), dirty, any_text)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(dirty, inner, max_size=4), max_leaves=20
)


def is_clean(text: str) -> bool:
    return not any(c == "\x00" or "\ud800" <= c <= "\udfff" for c in text)


@given(st.one_of(any_text, dirty))
def test_cleaned_text_can_be_stored_and_cleaning_it_again_changes_nothing(text: str) -> None:
    cleaned = clean(text)

    assert is_clean(cleaned)
    assert cleaned.encode("utf-8").decode("utf-8") == cleaned
    assert clean(cleaned) == cleaned


@given(good)
def test_clean_text_stays_the_very_same(text: str) -> None:
    assert clean(text) is text


@given(st.one_of(any_text, dirty))
def test_what_was_good_in_a_text_is_kept_in_its_order(text: str) -> None:
    kept = [c for c in text if is_clean(c) and c != "\ufffd"]

    left = iter(clean(text))

    assert all(c in left for c in kept)


def test_a_surrogate_pair_is_the_character_that_it_means() -> None:
    assert clean("\ud83d\ude00") == "\U0001f600"
    assert clean("\ud83d\ud83d\ude00\ude00") == "\ufffd\U0001f600\ufffd"
    assert clean("a\x00b") == "a\ufffdb"


@given(values)
def test_a_value_is_cleaned_at_every_depth_and_stays_what_it_is(value: Any) -> None:
    cleaned = clean_value(value)

    text = json.dumps(cleaned, ensure_ascii=False)
    assert "\\u0000" not in text
    text.encode("utf-8")
    assert clean_value(cleaned) == cleaned


@given(st.recursive(good, lambda v: st.lists(v, max_size=3) | st.dictionaries(good, v, max_size=3), max_leaves=10))
def test_a_clean_value_is_equal_to_itself(value: Any) -> None:
    assert clean_value(value) == value


def test_an_escape_in_a_text_is_no_character_of_it() -> None:
    assert clean_value({"arguments": '{"a":"\\u0000"}'}) == {"arguments": '{"a":"\\u0000"}'}


@given(st.binary(max_size=40))
def test_bytes_become_text_that_can_be_stored(data: bytes) -> None:
    assert is_clean(clean_bytes(data))


@given(good)
def test_bytes_of_good_text_become_that_text(text: str) -> None:
    assert clean_bytes(text.encode("utf-8")) == text
