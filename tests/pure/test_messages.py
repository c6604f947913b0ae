"""Messages, their blocks, and the JSON that is stored of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.records.agent import AgentSettings, Grace, OnBusy
from persistence.records.message import (
    Block,
    Call,
    CallStatus,
    Image,
    Native,
    Opaque,
    Result,
    Role,
    Text,
    Thinking,
    block_from_json,
    block_to_json,
    content_from_json,
    content_to_json,
    dumps,
)
from persistence.records.usage import Usage
from tests.pure.turns import message, said

texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=20)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
natives = st.builds(Native, texts, st.dictionaries(texts, json_values, min_size=1, max_size=3))
maybe = st.one_of(st.none(), natives)
blocks: st.SearchStrategy[Block] = st.one_of(
    st.builds(Text, texts, maybe),
    st.builds(Call, texts, texts, texts, maybe),
    st.builds(Result, texts, texts, st.sampled_from(CallStatus)),
    st.builds(Thinking, texts, natives),
    st.builds(Image, texts, texts, texts),
    st.builds(Opaque, natives),
)


@given(st.lists(blocks, max_size=5))
def test_content_comes_back_from_its_json_as_it_was(content: list[Block]) -> None:
    stored = content_to_json(tuple(content))

    assert content_from_json(json.loads(stored)) == tuple(content)
    assert content_to_json(content_from_json(json.loads(stored))) == stored, "same value, same bytes"


@given(json_values)
def test_the_encoder_is_compact_keeps_order_and_writes_characters_as_they_are(value: Any) -> None:
    assert json.loads(dumps(value)) == value
    assert dumps({"b": "\u2028\u00e9", "a": 1}) == '{"b":"\u2028\u00e9","a":1}'


def test_what_json_has_no_word_for_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        dumps(float("nan"))


def test_a_block_of_a_later_version_is_named() -> None:
    with pytest.raises(ValueError, match="hologram"):
        block_from_json({"type": "hologram"})


def test_the_shapes_that_are_public() -> None:
    native = Native("scripted", {"type": "x"})

    assert [block_to_json(b) for b in (Text("hi"), Call("c", "look", "{ }"), Result("c", "no", CallStatus.FAILED))] == [
        {"type": "text", "text": "hi"},
        {"type": "tool_call", "id": "c", "name": "look", "arguments": "{ }"},
        {"type": "tool_result", "id": "c", "content": "no", "is_error": True, "status": "failed"},
    ]
    assert block_to_json(Thinking("hm", native)) == {
        "type": "thinking",
        "text": "hm",
        "native": {"provider": "scripted", "data": {"type": "x"}},
    }


@pytest.mark.parametrize("status", CallStatus)
def test_only_success_is_no_error(status: CallStatus) -> None:
    assert Result("c", "", status).is_error is (status is not CallStatus.SUCCEEDED)


def test_a_message_knows_its_words_and_its_calls() -> None:
    both = said("one ", "a", "b")

    assert (both.text, [c.id for c in both.calls]) == ("one ", ["a", "b"])
    assert message(Role.ASSISTANT, Text("one "), Text("two")).text == "one two"


usages = st.builds(Usage, *(st.integers(0, 10**9) for _ in range(5)))


@given(usages, usages)
def test_usage_adds_up_by_kind_and_bills_reasoning_once(a: Usage, b: Usage) -> None:
    assert (a + b).total == a.total + b.total
    assert a + Usage() == a
    assert a.total == a.input_tokens + a.output_tokens + a.cache_read_tokens + a.cache_write_tokens


def test_settings_come_back_from_their_json_as_they_were() -> None:
    settings = AgentSettings(
        "a", "p:m", fallbacks=("q:n",), tools=("files",), grace=Grace.TOOLS, on_busy=OnBusy.STEER, max_cost_usd=0.5
    )

    again = AgentSettings.from_json(json.loads(dumps(settings.to_json())))

    assert again == settings
    assert again.digest == settings.digest


def test_settings_of_a_newer_version_are_read_without_what_is_not_known() -> None:
    settings = AgentSettings("a", "p:m")

    assert AgentSettings.from_json(settings.to_json() | {"of_tomorrow": 1}) == settings


def test_other_settings_have_another_digest() -> None:
    assert AgentSettings("a", "p:m").digest != AgentSettings("a", "p:m", iterations=91).digest
